from pathlib import Path

import pytest
from typer.testing import Result

from clinit.errors import ExperimentError, HeadError, MachineError
from clinit.headtrain.closed import methods as closed_methods
from clinit.headtrain.model.classifier import load_model
from tests.cli.calls import call

SMALL = {
    "ranpac": ["--ranpac-width", "40"],
    "klda": ["--klda-width", "30"],
    "fecam": [],
    "slda": [],
    "simplecil": [],
}


def train(caches: Path, out: Path, method: str, *options: str) -> Result:
    sides = ["--base", caches / "base", "--new", caches / "new", "--out", out]
    return call(
        "train-head", *sides, "--tasks=2", "--device=cpu", "--method", method, *SMALL[method],
        *options,
    )  # fmt: skip


@pytest.fixture(scope="module")
def runs(tiny_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of each closed form on the caches of `tiny_run`, by the name of its method."""
    out = tmp_path_factory.mktemp("closed")
    for method in SMALL:
        result = train(tiny_run.parent / "caches", out, method)
        assert result.exit_code == 0, result.output
        assert method in result.output
    return out


@pytest.mark.parametrize("method", SMALL)
def test_a_run_is_repeated_bit_for_bit(method: str, runs: Path) -> None:
    result = call("rerun", runs / method)
    assert result.exit_code == 0, result.output
    said = "every table is that of" if method == "fecam" else "the final head are those of"
    assert said in result.output


@pytest.mark.parametrize("method", ["slda", "simplecil"])
def test_linear_heads_are_exported(method: str, runs: Path, tmp_path: Path) -> None:
    out = tmp_path / "model.safetensors"
    result = call("export", runs / method, "--out", out)
    assert result.exit_code == 0, result.output
    caution = load_model(out, device="cpu").facts.caution
    assert (caution is not None) == (method == "simplecil")


def test_what_is_no_linear_head_is_neither_diagnosed_nor_started_from(
    runs: Path, tiny_run: Path, tmp_path: Path
) -> None:
    head, caches = runs / "ranpac" / "head.safetensors", tiny_run.parent / "caches"
    for result in (
        call("diagnose", caches / "base", "--head", head),
        train(caches, tmp_path / "runs", "slda", "--head", str(head)),
    ):
        assert isinstance(result.exception, HeadError)
        assert "is no linear layer" in str(result.exception)
    refused = train(caches, tmp_path / "runs", "fecam", "--diagnose")
    assert isinstance(refused.exception, ExperimentError)
    assert "--diagnose measures linear heads" in str(refused.exception)


def test_what_does_not_fit_into_memory_is_refused_before_it_is_read(
    tiny_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(closed_methods, "free_memory", lambda device: 10**6)
    result = train(tiny_run.parent / "caches", tmp_path / "runs", "ranpac", "--ranpac-width=500")
    assert isinstance(result.exception, MachineError)
    assert "statistics of ranpac take" in str(result.exception)
    assert "--ranpac-width" in result.exception.remedy

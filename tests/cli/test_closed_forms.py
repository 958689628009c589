from pathlib import Path

import pytest
from typer.testing import Result

from clinit.headtrain.model.classifier import load_model
from tests.cli.calls import call, refused

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
    said = ": every table" if method == "fecam" else "the final head"
    assert said in result.output


@pytest.mark.parametrize("method", ["slda", "simplecil"])
def test_linear_heads_are_exported(method: str, runs: Path, tmp_path: Path) -> None:
    out = tmp_path / "model.safetensors"
    result = call("export", runs / method, "--out", out)
    assert result.exit_code == 0, result.output
    caution = load_model(out, device="cpu").facts.caution
    assert (caution is not None) == (method == "simplecil")


def test_what_is_no_linear_head_is_not_diagnosed(runs: Path, tiny_run: Path) -> None:
    head = runs / "ranpac" / "head.safetensors"
    error = refused(call("diagnose", tiny_run.parent / "caches" / "base", "--head", head))
    assert "not the features of the backbone" in str(error)

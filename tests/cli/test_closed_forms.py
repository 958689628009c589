from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from clinit.cli.main import app
from clinit.errors import ExperimentError, HeadError, MachineError
from clinit.headtrain.closed import methods as memory
from clinit.headtrain.model.predict import load_model
from clinit.headtrain.record.format import read_record

SMALL = {
    "ranpac": ["--ranpac-width", "40"],
    "klda": ["--klda-width", "30"],
    "fecam": [],
    "slda": [],
    "simplecil": [],
}


def invoke(*words: object) -> Result:
    return CliRunner().invoke(app, [str(word) for word in words])


def train(caches: Path, out: Path, method: str, *options: str) -> Result:
    sides = ["--base", caches / "base", "--new", caches / "new", "--out", out]
    return invoke(
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


def test_a_second_call_finds_the_records(runs: Path, tiny_run: Path) -> None:
    result = train(tiny_run.parent / "caches", runs, "ranpac")
    assert result.exit_code == 0, result.output
    assert "is there already" in result.output


@pytest.mark.parametrize("method", SMALL)
def test_a_run_is_repeated_bit_for_bit(method: str, runs: Path) -> None:
    result = invoke("rerun", runs / method)
    assert result.exit_code == 0, result.output
    said = "every table is that of" if method == "fecam" else "the final head are those of"
    assert said in result.output


def test_the_report_shows_all_of_them_beside_each_other(runs: Path) -> None:
    result = invoke("report", runs, "--format", "json")
    assert result.exit_code == 0, result.output
    rows = json.loads(result.stdout)
    assert {row["init"] for row in rows} == set(SMALL)
    assert "No gain without a random run" not in result.output


@pytest.mark.parametrize("method", ["slda", "simplecil"])
def test_linear_heads_are_exported(method: str, runs: Path, tmp_path: Path) -> None:
    out = tmp_path / "model.safetensors"
    result = invoke("export", runs / method, "--out", out)
    assert result.exit_code == 0, result.output
    caution = load_model(out, device="cpu").caution
    assert (caution is not None) == (method == "simplecil")


@pytest.mark.parametrize(
    ("method", "why"),
    [
        ("ranpac", "its rows read 40 random ReLU features of them"),
        ("klda", "its rows read 30 random Fourier features of them"),
        ("fecam", "the distances of fecam are quadratic in the features"),
    ],
)
def test_what_is_no_linear_head_is_not_exported(
    method: str, why: str, runs: Path, tmp_path: Path
) -> None:
    out = tmp_path / "model.safetensors"
    result = invoke("export", runs / method, "--out", out)
    assert isinstance(result.exception, HeadError)
    assert why in str(result.exception)
    assert "Take the" in result.exception.remedy
    assert not out.exists()


def test_what_is_no_linear_head_is_neither_diagnosed_nor_started_from(
    runs: Path, tiny_run: Path, tmp_path: Path
) -> None:
    head, caches = runs / "ranpac" / "head.safetensors", tiny_run.parent / "caches"
    diagnosed = invoke("diagnose", caches / "base", "--head", head)
    started = train(caches, tmp_path / "runs", "slda", "--head", str(head))
    for result in (diagnosed, started):
        assert isinstance(result.exception, HeadError)
        assert "is no linear layer on the features of the backbone" in str(result.exception)
    refused = train(caches, tmp_path / "runs", "fecam", "--diagnose")
    assert isinstance(refused.exception, ExperimentError)
    assert "--diagnose measures linear heads" in str(refused.exception)


def test_linear_heads_are_diagnosed(tiny_run: Path, tmp_path: Path) -> None:
    result = train(tiny_run.parent / "caches", tmp_path / "runs", "slda", "--diagnose")
    assert result.exit_code == 0, result.output
    assert read_record(tmp_path / "runs" / "slda").info["tasks"][1]["diagnosis"]


def test_what_does_not_fit_into_memory_is_refused_before_it_is_read(
    tiny_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory, "free_memory", lambda device: 10**6)
    monkeypatch.setattr(memory, "SAID_FROM", 0)
    result = train(tiny_run.parent / "caches", tmp_path / "runs", "ranpac", "--ranpac-width=500")
    assert isinstance(result.exception, MachineError)
    assert "sums and solves of 500 random features take 0.01 GB of memory" in str(result.exception)
    assert result.exception.remedy == "Give a smaller --ranpac-width."


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--lambda", "1"], "--lambda does not go with --method ranpac: its lambda is"),
        (["--buffer", "10"], "--buffer does not go with --method ranpac: it keeps statistics"),
        (["--init", "zero"], "--init does not go with --method ranpac: its head is solved"),
        (["--klda-width", "9"], "--klda-width does not go with --method ranpac: it is a setting"),
        (["--ranpac-lambda", "0"], "--ranpac-lambda must be positive, got 0"),
        (["--ranpac-lambda", "x"], "--ranpac-lambda takes a number or 'auto', got 'x'"),
        (["--weighting", "class"], "--weighting does not go with --method ranpac: every row"),
    ],
)
def test_options_of_other_methods_are_refused(
    options: list[str], message: str, tiny_run: Path, tmp_path: Path
) -> None:
    result = train(tiny_run.parent / "caches", tmp_path / "runs", "ranpac", *options)
    assert result.exit_code == 2
    assert message in " ".join(result.output.replace("│", " ").split())


def test_a_file_may_hold_a_section_for_a_closed_form(tiny_run: Path, tmp_path: Path) -> None:
    study = tmp_path / "study.toml"
    study.write_text('[train-head]\nmethod = "klda"\nklda-width = 25\nklda-gamma = 0.5\n')
    caches = tiny_run.parent / "caches"
    result = invoke(
        "train-head", "--base", caches / "base", "--new", caches / "new", "--tasks=2",
        "--device=cpu", "--out", tmp_path / "runs", "--config", study,
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    told = read_record(tmp_path / "runs" / "klda").info
    assert (told["feature_map"]["width"], told["feature_map"]["gamma"]) == (25, 0.5)


def test_sweeps_take_closed_forms_and_their_settings(tiny_run: Path, tmp_path: Path) -> None:
    caches = tiny_run.parent / "caches"
    words = ["--base", caches / "base", "--new", caches / "new", "--out", tmp_path / "sweep"]
    grid = ["method=slda,fecam,ranpac,ridge", "ranpac_width=20,30", "tasks=2", "device=cpu"]
    result = invoke("sweep", *words, *grid)
    assert result.exit_code == 0, result.output
    names = {folder.name for folder in (tmp_path / "sweep").iterdir() if folder.is_dir()}
    assert names == {
        "slda",
        "fecam",
        "ridge",
        "ranpac-ranpac-width=20",
        "ranpac-ranpac-width=30",
    }
    again = invoke("sweep", *words, *grid)
    assert again.exit_code == 0, again.output

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from clinit.cli.main import app
from clinit.errors import ClinitError
from clinit.headtrain.model.model_file import read_facts
from clinit.headtrain.record import format as record_module
from clinit.headtrain.record.format import find_records, read_info
from tests.cli.made_cache import write_cache

SIZES = ("--tasks=2", "--iterations=4", "--eval-every=2", "--batch-size=8", "--buffer=10")
REMEDY = "Choose another --out, or replace it with --overwrite."


@pytest.fixture
def caches(tmp_path: Path) -> list[str]:
    base, new = (write_cache(tmp_path / name, seed) for seed, name in enumerate(("base", "new")))
    return ["--base", str(base), "--new", str(new)]


def invoke(*words: object) -> Result:
    return CliRunner().invoke(app, [str(word) for word in words])


def train(caches: list[str], out: Path, *words: str) -> Result:
    return invoke("train-head", *caches, "--out", out, "--device=cpu", *SIZES, *words)


def refused(result: Result) -> ClinitError:
    assert isinstance(result.exception, ClinitError), result.output
    return result.exception


def test_the_record_of_another_run_is_replaced_where_that_is_asked_for(
    caches: list[str], tmp_path: Path
) -> None:
    runs = tmp_path / "runs"
    train(caches, runs, "--init=random", "--init=lda")
    assert refused(train(caches, runs, "--init=random", "--seed=1")).remedy == (
        f"{REMEDY} `clinit sweep` collects runs of several settings in one folder."
    )
    result = train(caches, runs, "--init=random", "--seed=1", "--overwrite")
    assert result.exit_code == 0, (result.output, result.exception)
    assert f"Note: {runs}/random is replaced when the new one is whole" in result.output
    assert "lda-calibrated is replaced" not in result.output
    seeds = {path.name: read_info(path)["config"]["seed"] for path in find_records(runs)}
    assert seeds == {"random": 1, "lda-calibrated": 0}
    assert sorted(path.name for path in runs.iterdir()) == [".lock", "lda-calibrated", "random"]


def test_a_run_that_is_recorded_is_trained_again_and_gets_the_diagnoses_asked_for(
    caches: list[str], tmp_path: Path
) -> None:
    runs = tmp_path / "runs"
    train(caches, runs, "--init=random")
    assert refused(train(caches, runs, "--init=random", "--diagnose")).remedy == REMEDY
    assert train(caches, runs, "--init=random", "--diagnose", "--overwrite").exit_code == 0
    assert all("diagnosis" in task for task in read_info(runs / "random")["tasks"])


@pytest.mark.parametrize("stranger", ["notes.txt", ".git/config"])
def test_a_record_with_a_file_of_the_user_in_it_is_never_replaced(
    caches: list[str], tmp_path: Path, stranger: str
) -> None:
    runs = tmp_path / "runs"
    train(caches, runs, "--init=random")
    (runs / "random" / stranger).parent.mkdir(exist_ok=True)
    (runs / "random" / stranger).write_text("mine")
    error = refused(train(caches, runs, "--init=random", "--overwrite"))
    name = stranger.partition("/")[0]
    assert str(error).endswith(f"that is never replaced: it holds {name} beside the record")
    assert (runs / "random" / stranger).read_text() == "mine"


def test_a_failure_leaves_the_former_record(
    caches: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = tmp_path / "runs"
    train(caches, runs, "--init=random")
    before = (runs / "random" / "run.json").read_bytes()

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(record_module, "_write_files", full)
    error = refused(train(caches, runs, "--init=random", "--seed=1", "--overwrite"))
    assert "No space left on device" in str(error)
    assert (runs / "random" / "run.json").read_bytes() == before
    assert [path.name for path in runs.iterdir() if path.name != ".lock"] == ["random"]


def test_a_model_is_replaced_and_a_folder_that_holds_more_is_not(
    tiny_run: Path, tmp_path: Path
) -> None:
    out = tmp_path / "scenes"
    invoke("export", tiny_run, "--out", out, "--no-memory", "--no-temperature")
    assert refused(invoke("export", tiny_run, "--out", out)).remedy == REMEDY
    written = (out / "model.safetensors").stat().st_mtime_ns
    result = invoke("export", tiny_run, "--out", out, "--overwrite")
    assert result.exit_code == 0, (result.output, result.exception)
    assert f"Note: {out} is replaced when the new one is whole" in result.output
    assert (out / "memory.safetensors").is_file()
    assert (out / "model.safetensors").stat().st_mtime_ns > written
    first = read_facts(out / "model.safetensors").class_names[0]
    for _ in range(2):
        words = ("rename", out, f"{first}=other", "--out", tmp_path / "renamed", "--overwrite")
        assert invoke(*words).exit_code == 0
    inside = invoke("rename", out, f"{first}=other", "--out", out, "--overwrite")
    assert "which is only read" in str(refused(inside))
    (out / "LICENSE").write_text("mine")
    error = refused(invoke("export", tiny_run, "--out", out, "--overwrite"))
    assert str(error).endswith("it holds LICENSE, which is not of a model folder")
    assert (out / "LICENSE").read_text() == "mine"
    part = refused(invoke("export", tiny_run, "--out", out / "model.safetensors", "--overwrite"))
    assert f"it is part of the model folder {out}" in str(part)


def test_an_aligned_head_is_replaced(caches: list[str], tmp_path: Path) -> None:
    out = tmp_path / "aligned.safetensors"
    words = ("align", caches[1], "--loss=mse", "--epochs=1", "--device=cpu", "--out", out)
    assert invoke(*words).exit_code == 0
    assert refused(invoke(*words)).remedy == REMEDY
    assert invoke(*words, "--overwrite").exit_code == 0

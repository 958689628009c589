"""`--overwrite` replaces what clinit has written, whole, and nothing else."""

from pathlib import Path

import pytest
from typer.testing import Result

import clinit
from clinit.errors import ModelError
from clinit.headtrain.model.storage import read_facts
from clinit.headtrain.protocol.record.format import find_records, read_info
from tests.cli.calls import call, checked, done, refused, sides

SIZES = ("--tasks=2", "--iterations=4", "--eval-every=2", "--batch-size=8", "--buffer=10")
REMEDY = "Choose another --out, or replace it with --overwrite."


def train(run: Path, out: Path, *words: str) -> Result:
    return call("train-head", *sides(run), "--out", out, "--device=cpu", *SIZES, *words)


def test_the_record_of_another_run_is_replaced_where_that_is_asked_for(
    tiny_run: Path, tmp_path: Path
) -> None:
    runs = tmp_path / "runs"
    train(tiny_run, runs, "--init=random", "--init=lda")
    for other in ("--seed=1", "--diagnose"):
        assert REMEDY in refused(train(tiny_run, runs, "--init=random", other)).remedy
    checked(train(tiny_run, runs, "--init=random", "--seed=1", "--diagnose", "--overwrite"))
    seeds = {path.name: read_info(path)["config"]["seed"] for path in find_records(runs)}
    assert seeds == {"random": 1, "lda-calibrated": 0}
    assert sorted(path.name for path in runs.iterdir()) == [".lock", "lda-calibrated", "random"]
    assert all("diagnosis" in task for task in read_info(runs / "random")["tasks"])


def test_a_model_is_replaced_and_a_folder_that_holds_more_is_not(
    tiny_run: Path, tmp_path: Path
) -> None:
    out, export = tmp_path / "scenes", ("export", tiny_run, "--out")
    call(*export, out)
    assert refused(call(*export, out)).remedy == REMEDY
    done(*export, out, "--overwrite")
    assert (out / "memory.safetensors").is_file()
    first = read_facts(out / "model.safetensors").class_names[0]
    rename = ("rename", out, f"{first}=other", "--overwrite", "--out")
    for _ in range(2):
        assert call(*rename, tmp_path / "renamed").exit_code == 0
    for words in ((*rename, out), ("model", "merge", tmp_path / "renamed", out, "--out", out)):
        assert "is only read" in str(refused(call(*words)))
    (out / "LICENSE").write_text("mine")
    assert "it holds LICENSE" in str(refused(call(*export, out, "--overwrite")))
    part = refused(call(*export, out / "model.safetensors", "--overwrite"))
    assert f"it is part of the model folder {out}" in str(part)
    with pytest.raises(ModelError, match="is never written: it is part of the model folder"):
        clinit.load(out).save(out / "other")

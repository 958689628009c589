import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from clinit.headtrain.protocol.record.format import read_info, read_record
from clinit.headtrain.top.images import Images
from clinit.headtrain.top.inputs import ImageData, prepare_runs
from tests.cli.calls import call, done, sides


def test_a_run_of_heads_gives_the_same_bits_and_leaves_nothing(tiny_run: Path) -> None:
    before = sorted(tiny_run.parent.iterdir())
    assert ": every table and the final head" in done("rerun", tiny_run)
    assert sorted(tiny_run.parent.iterdir()) == before


def test_a_run_of_top_blocks_gives_the_same_bits_and_is_recorded(
    tiny_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[Images] = []

    def watched(data: ImageData, *rest: Any, **more: Any) -> Any:
        read.append(data.images)
        return prepare_runs(data, *rest, **more)

    words = [*sides(tiny_run), "--out", tmp_path / "runs"]
    words += ["--tasks=2", "--iterations=3", "--batch-size=6", "--buffer=9", "--device=cpu"]
    done("train-top", *words, "--rank=3", "--no-probe", "--init=least-square")
    run = tmp_path / "runs" / "least-square-calibrated"
    monkeypatch.setattr("clinit.headtrain.top.inputs.prepare_runs", watched)
    result = done("rerun", run, "--out", tmp_path / "again", "--workers=1", "--max-pixels=5000")
    assert "The same bits" in result
    assert [(each.storage.workers, each.storage.max_pixels) for each in read] == [(1, 5000)]
    assert read_record(tmp_path / "again").evaluations.equals(read_record(run).evaluations)
    assert (tmp_path / "again" / "study.toml").read_text() == (run / "study.toml").read_text()


def test_what_differs_is_said_with_what_may_be_the_reason(
    make_run: Callable[..., Path], tmp_path: Path, edit_document: Callable[..., None]
) -> None:
    run = make_run(tmp_path)
    config = {**read_info(run)["config"], "lr": 0.5}
    edit_document(run / "run.json", config=config, bank_size=3)
    result = call("rerun", run)
    assert result.exit_code == 1
    said = result.output
    assert f"Not the same bits as {run}" in said.replace("\n", "")
    assert "steps: loss, loss_new, loss_old\n" in said
    assert "head weight: by" in said
    assert "bank size: 3 then, 1 now" in said
    assert "classes:" not in said


def test_caches_that_have_moved_are_asked_for(
    make_run: Callable[..., Path], tmp_path: Path
) -> None:
    run = make_run(tmp_path / "made")
    shutil.move(run.parent / "caches", tmp_path / "caches")
    result = call("rerun", run)
    assert result.exit_code == 1
    assert "which no longer exists" in str(result.exception)
    assert getattr(result.exception, "remedy", "") == "Give its new path with --base."
    done("rerun", run, "--base", tmp_path / "caches" / "base", "--new", tmp_path / "caches" / "new")


def test_other_data_and_a_taken_folder_are_refused(
    make_run: Callable[..., Path], tmp_path: Path
) -> None:
    run = make_run(tmp_path / "made")
    caches = run.parent / "caches"
    result = call("rerun", run, "--new", caches / "base")
    assert "was made with other data: new manifest_digest" in str(result.exception)
    result = call("rerun", run, "--out", run)
    assert str(result.exception) == f"there is already a run record at {run}"
    result = call("rerun", run, "--out", run, "--overwrite")
    assert result.exit_code == 2
    assert "--out is the recorded run itself" in result.output


def test_heads_of_a_bank_are_trained_beside_each_other_again(
    tiny_run: Path, tmp_path: Path
) -> None:
    words = [*sides(tiny_run), "--out", tmp_path / "runs"]
    small = ["--tasks=2", "--iterations=20", "--eval-every=10", "--buffer=9", "--batch-size=8"]
    done("train-head", *words, *small, "--device=cpu")
    runs = sorted(path.parent for path in (tmp_path / "runs").glob("*/run.json"))
    assert len(runs) == 3
    for run in runs:
        assert len(read_info(run)["bank"]) == 3
        done("rerun", run)


def test_heads_of_runs_are_measured_on_the_caches_of_their_runs(tiny_run: Path) -> None:
    caches = [str(tiny_run.parent / "caches" / side) for side in ("base", "new")]
    head = str(tiny_run / "head.safetensors")
    asked = [[str(tiny_run)], [*caches, "--head", head], [str(tiny_run), "--head", head]]
    shown = [call("diagnose", *words, "--json") for words in asked]
    one, same, both = (json.loads(each.stdout) for each in shown)
    assert one["nc3"] == same["nc3"]
    assert [each["head"] for each in both] == [head, str(tiny_run)]
    assert "floor: the least NC2" in call("diagnose", *asked[2]).output

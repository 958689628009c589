from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import Result

from clinit.headtrain.protocol.record.format import find_records, read_info, read_record
from clinit.headtrain.top.checkpoint import Checkpoint
from tests.cli.calls import call, checked, sides

SIZES = ("tasks=2", "iterations=3", "eval_every=3", "batch_size=6", "buffer=9")
Sweep = Callable[..., Result]
TOP = ("--top", *SIZES, "probe=false", "device=cpu")


@pytest.fixture
def sweep(tiny_run: Path, tmp_path: Path) -> Sweep:
    return lambda *words: call("sweep", *sides(tiny_run), "--out", tmp_path / "out", *words)


def test_a_grid_is_trained_recorded_and_ranked(sweep: Sweep, tmp_path: Path) -> None:
    grid = [*SIZES, "device=cpu", "init=random,least-square", "scale=norm,calibrated", "seed=0:2"]
    text = checked(sweep(*grid))
    assert "2 of 8 combinations repeat another run" in text
    assert "6 runs on 2 streams, 0 already recorded; 6 to train in 2 banks" in text
    assert "3 of 6 runs recorded" in text
    assert "6 of 6 runs recorded" in text
    assert "±" in text
    assert "Ranked by A_all" in text
    assert "6 run records at" in text
    assert len(find_records(tmp_path / "out")) == 6
    again = checked(sweep(*grid))
    assert "6 runs on 2 streams, 6 already recorded; 0 to train in 0 banks" in again
    assert "are recorded\n" not in again
    assert "Ranked by A_all" in again


def test_runs_of_top_blocks_are_those_of_train_top_and_are_not_trained_again(
    sweep: Sweep, tiny_run: Path, tmp_path: Path
) -> None:
    grid = [*TOP, "rank=2", "init=random,least-square"]
    checked(sweep(*grid))
    found = {path.name: read_info(path)["id"] for path in find_records(tmp_path / "out")}
    assert found == {name: name for name in ("random", "least-square-calibrated")}
    assert not list((tmp_path / "out").glob("*.checkpoint"))
    words = [*sides(tiny_run), "--out", tmp_path / "alone"]
    options = [f"--{word.replace('_', '-')}" for word in SIZES]
    options += ["--no-probe", "--rank=2", "--init=least-square", "--device=cpu"]
    checked(call("train-top", *words, *options))
    one = read_record(tmp_path / "alone" / "least-square-calibrated")
    other = read_record(tmp_path / "out" / "least-square-calibrated")
    assert one.steps.equals(other.steps)
    assert one.info["config"] == other.info["config"]
    assert "4 runs, 2 already recorded" in checked(sweep(*grid, "seed=0:2"))
    assert len(find_records(tmp_path / "out")) == 4


def test_a_killed_run_is_resumed_when_the_grid_has_grown(
    sweep: Sweep, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    grid, save = [*TOP, "--checkpoint-every=1", "init=random"], Checkpoint.write

    def kill(self: Checkpoint) -> None:
        save(self)
        raise KeyboardInterrupt

    monkeypatch.setattr(Checkpoint, "write", kill)
    sweep(*grid)
    (left,) = (tmp_path / "out").glob("*.checkpoint")
    monkeypatch.setattr(Checkpoint, "write", save)
    assert "from its checkpoint" in checked(sweep(*grid, "seed=0:2"))
    assert not left.exists()
    assert len(find_records(tmp_path / "out")) == 2

from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from clinit.cli.main import app
from clinit.headtrain.record.format import find_records, read_info, read_record
from clinit.headtrain.top.blocks import TopBlocks

SMALL = ["tasks=2", "iterations=3", "eval_every=3", "batch_size=6", "buffer=9", "probe=false"]
TOP = ["--top", *SMALL, "device=cpu"]


@pytest.fixture
def sweep(tiny_run: Path, tmp_path: Path) -> Callable[..., Result]:
    caches = tiny_run.parent / "caches"
    places = ["--base", caches / "base", "--new", caches / "new", "--out", tmp_path / "out"]
    return lambda *words: CliRunner().invoke(app, ["sweep", *map(str, places), *words])


def test_runs_of_top_blocks_are_those_of_train_top_and_are_not_trained_again(
    sweep: Callable[..., Result], tiny_run: Path, tmp_path: Path
) -> None:
    grid = [*TOP, "rank=2", "init=random,least-square"]
    result = sweep(*grid)
    assert result.exit_code == 0, result.output
    found = {path.name: read_info(path)["id"] for path in find_records(tmp_path / "out")}
    assert found == {name: name for name in ("random", "least-square-calibrated")}
    assert not list((tmp_path / "out").glob("*.checkpoint"))
    caches = tiny_run.parent / "caches"
    words = ["--base", caches / "base", "--new", caches / "new", "--out", tmp_path / "alone"]
    options = [f"--{word.replace('_', '-')}" for word in SMALL[:-1]]
    options += ["--no-probe", "--rank=2", "--init=least-square", "--device=cpu"]
    alone = CliRunner().invoke(app, ["train-top", *map(str, words), *options])
    assert alone.exit_code == 0, alone.output
    one = read_record(tmp_path / "alone" / "least-square-calibrated")
    other = read_record(tmp_path / "out" / "least-square-calibrated")
    assert one.steps.equals(other.steps)
    assert one.info["config"] == other.info["config"]
    more = sweep(*grid, "seed=0:2", "--dry-run")
    assert "4 runs, 2 already recorded" in more.output
    assert "least-square-calibrated-seed=1" in more.output
    assert len(find_records(tmp_path / "out")) == 2


def test_a_killed_run_is_resumed_when_the_grid_has_grown(
    sweep: Callable[..., Result], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    grid, save = [*TOP, "--checkpoint-every=1", "init=random"], TopBlocks._save

    def kill(self: TopBlocks, *words: object) -> None:
        save(self, *words)  # type: ignore[arg-type]
        raise KeyboardInterrupt

    monkeypatch.setattr(TopBlocks, "_save", kill)
    sweep(*grid)
    (left,) = (tmp_path / "out").glob("*.checkpoint")
    monkeypatch.setattr(TopBlocks, "_save", save)
    result = sweep(*grid, "seed=0:2")
    assert result.exit_code == 0, result.output
    assert "from its checkpoint" in result.output
    assert not left.exists()
    assert len(find_records(tmp_path / "out")) == 2

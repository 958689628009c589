from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from clinit.cli.main import app
from clinit.headtrain.record.format import find_records
from tests.cli.calls import checked
from tests.cli.made_cache import write_cache

SMALL = ("device=cpu", "tasks=2", "iterations=4", "eval_every=2", "batch_size=8", "buffer=10")


@pytest.fixture
def caches(tmp_path: Path) -> list[str]:
    base, new = (write_cache(tmp_path / name, seed) for seed, name in enumerate(("base", "new")))
    return ["--base", str(base), "--new", str(new)]


def invoke(caches: list[str], out: Path, *words: str) -> Result:
    return CliRunner().invoke(app, ["sweep", *caches, "--out", str(out), *SMALL, *words])


def test_a_grid_is_trained_recorded_and_ranked(caches: list[str], tmp_path: Path) -> None:
    grid = ["init=random,least-square", "scale=norm,calibrated", "seed=0:2"]
    text = checked(invoke(caches, tmp_path / "out", *grid))
    assert "2 of 8 combinations repeat another run" in text
    assert "6 runs on 2 streams, 0 already recorded; 6 to train in 2 banks" in text
    assert "3 of 6 runs recorded" in text
    assert "6 of 6 runs recorded" in text
    assert "±" in text
    assert "Ranked by A_all" in text
    assert "6 run records at" in text
    assert len(find_records(tmp_path / "out")) == 6
    again = checked(invoke(caches, tmp_path / "out", *grid))
    assert "6 runs on 2 streams, 6 already recorded; 0 to train" in again
    assert "are recorded\n" not in again
    assert "Ranked by A_all" in again


def test_a_dry_run_lists_the_runs_and_trains_none(caches: list[str], tmp_path: Path) -> None:
    text = checked(invoke(caches, tmp_path / "out", "init=random,lda", "--dry-run"))
    assert "Bank 1, seed 0:\n" in text
    assert "  lda-calibrated\n" in text
    assert find_records(tmp_path / "out") == []


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--top", "--bank-size", "3"], "--bank-size is for banks of heads"),
        (["--top", "--held-out", "0.2"], "--held-out is for banks of heads"),
        (["--workers", "3"], "--workers is for runs of top blocks"),
    ],
)
def test_options_that_do_not_go_together_are_refused(
    tmp_path: Path, words: list[str], message: str
) -> None:
    result = invoke(["--base", "absent", "--new", "absent"], tmp_path, *words)
    assert result.exit_code == 2
    assert message in " ".join(result.output.replace("│", " ").split())

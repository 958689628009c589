from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from clinit.cli.main import app
from clinit.errors import ClinitError
from clinit.headtrain.record.format import find_records, read_record
from tests.cli.made_cache import write_cache

DIM, CLASSES = 8, 4
SMALL = ("device=cpu", "tasks=2", "iterations=4", "eval_every=2", "batch_size=8", "buffer=10")


@pytest.fixture
def caches(tmp_path: Path) -> list[str]:
    base, new = (write_cache(tmp_path / name, seed) for seed, name in enumerate(("base", "new")))
    return ["--base", str(base), "--new", str(new)]


def invoke(caches: list[str], out: Path, *words: str) -> Result:
    return CliRunner().invoke(app, ["sweep", *caches, "--out", str(out), *SMALL, *words])


def done(result: Result) -> str:
    assert result.exit_code == 0, (result.output, result.exception)
    return result.output


def refused(result: Result) -> ClinitError:
    assert isinstance(result.exception, ClinitError), result.output
    return result.exception


def test_a_grid_is_trained_recorded_and_ranked(caches: list[str], tmp_path: Path) -> None:
    grid = ["init=random,least-square", "scale=norm,calibrated", "seed=0:2"]
    text = done(invoke(caches, tmp_path / "out", *grid))
    assert "2 of 8 combinations differ only in settings without an effect" in text
    assert "6 runs on 2 streams, 0 recorded already; 6 to train in 2 banks" in text
    assert "3 of 6 runs recorded" in text
    assert "6 of 6 runs recorded" in text
    assert "±" in text
    assert "Ranked by A_all" in text
    assert "6 run records at" in text
    assert len(find_records(tmp_path / "out")) == 6
    again = done(invoke(caches, tmp_path / "out", *grid))
    assert "6 runs on 2 streams, 6 recorded already; 0 to train" in again
    assert "are recorded\n" not in again
    assert "Ranked by A_all" in again


def test_a_study_file_and_the_command_line_make_one_grid(caches: list[str], tmp_path: Path) -> None:
    study = tmp_path / "study.toml"
    study.write_text('[grid]\ninit = ["random", "lda"]\nseed = "0:9"\nlr = 0.01\n')
    done(invoke(caches, tmp_path / "out", "seed=3", "--config", str(study)))
    configs = [read_record(path).info["config"] for path in find_records(tmp_path / "out")]
    assert {config["init"] for config in configs} == {"random", "lda"}
    assert {(config["seed"], config["lr"]) for config in configs} == {(3, 0.01)}


def test_a_dry_run_lists_the_runs_and_trains_none(caches: list[str], tmp_path: Path) -> None:
    text = done(invoke(caches, tmp_path / "out", "init=random,lda", "--dry-run"))
    assert "Bank 1, seed 0:\n" in text
    assert "  lda-calibrated\n" in text
    assert find_records(tmp_path / "out") == []


def test_what_is_no_grid_is_refused_before_a_cache_is_read(tmp_path: Path) -> None:
    nothing = ["--base", "absent", "--new", "absent"]
    error = refused(invoke(nothing, tmp_path / "out", "lerning_rate=1"))
    assert "a sweep of train-head has no field 'lerning_rate'" in str(error)
    error = refused(CliRunner().invoke(app, ["sweep", *nothing, "--out", str(tmp_path / "out")]))
    assert "holds no grid" in str(error)
    assert not (tmp_path / "out").exists()


def test_held_out_rows_take_the_place_of_the_test_rows(caches: list[str], tmp_path: Path) -> None:
    text = done(invoke(caches, tmp_path / "out", "lr=1e-3,1e-2", "--held-out", "0.1"))
    assert "Judged on 8 held-out training rows (0.1), not on test rows" in text
    records = [read_record(path) for path in find_records(tmp_path / "out")]
    assert [record.classes["val_rows"].sum() for record in records] == [8, 8]
    assert [record.classes["train_rows"].sum() for record in records] == [72, 72]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--top", "--bank-size", "3"], "--bank-size is for banks of heads"),
        (["--top", "--held-out", "0.2"], "--held-out is for banks of heads"),
        (["--workers", "3"], "--workers is for runs of top blocks"),
        (["seed=0", "--top", "--no-trunk-cache", "--trunk-budget=1GB"], "does not go with"),
    ],
)
def test_options_that_do_not_go_together_are_refused(
    tmp_path: Path, words: list[str], message: str
) -> None:
    result = invoke(["--base", "absent", "--new", "absent"], tmp_path, *words)
    assert result.exit_code == 2
    assert message in " ".join(result.output.replace("│", " ").split())

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from clinit.cli.main import app
from clinit.headtrain import runs as runs_module
from clinit.headtrain.record.format import find_records, read_info
from clinit.headtrain.record.info import settings_of
from clinit.headtrain.study.study import identity_of
from tests.cli.made_cache import write_cache

SIZES = ("--tasks=2", "--iterations=4", "--eval-every=2", "--batch-size=8", "--buffer=10")
TABLES = ("steps.parquet", "evaluations.parquet", "classes.parquet", "head.safetensors")


@pytest.fixture
def caches(tmp_path: Path) -> list[str]:
    base, new = (write_cache(tmp_path / name, seed) for seed, name in enumerate(("base", "new")))
    return ["--base", str(base), "--new", str(new)]


def train(caches: list[str], out: Path, *words: str) -> Result:
    command = ["train-head", *caches, "--out", str(out), "--device=cpu", *SIZES, *words]
    return CliRunner().invoke(app, command)


def done(result: Result) -> str:
    assert result.exit_code == 0, (result.output, result.exception)
    return result.output


def contents(*places: Path) -> dict[str, dict[str, bytes]]:
    """Return what the records hold, by the identity of their run."""
    return {
        identity_of(settings_of(read_info(folder))): {
            name: (folder / name).read_bytes() for name in TABLES
        }
        for place in places
        for folder in find_records(place)
    }


def test_several_seeds_are_the_runs_of_each_alone_bit_for_bit(
    caches: list[str], tmp_path: Path
) -> None:
    text = done(train(caches, tmp_path / "both", "--seed", "0:2"))
    assert "Seed 0 (1 of 2):" in text
    assert "Seed 1 (2 of 2):" in text
    assert "6 run records at" in text
    assert " ± " in text
    for seed in (0, 1):
        done(train(caches, tmp_path / f"seed-{seed}", "--seed", str(seed)))
    both = contents(tmp_path / "both")
    assert len(both) == 6
    assert both == contents(tmp_path / "seed-0", tmp_path / "seed-1")
    names = {path.name for path in find_records(tmp_path / "both")}
    assert {"random-seed=0", "random-seed=1"} <= names


def test_seeds_that_are_recorded_are_not_trained_again_under_whatever_name(
    caches: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs, words = tmp_path / "runs", ("--init", "random")
    done(train(caches, runs, *words))
    text = done(train(caches, runs, *words, "--seed=0:3"))
    assert f"{runs}/random is there already" in text
    assert sorted(path.name for path in find_records(runs)) == [
        "random",
        "random-seed=1",
        "random-seed=2",
    ]
    monkeypatch.setattr(runs_module, "train_bank", lambda *_: pytest.fail("trained"))
    assert f"{runs}/random-seed=2 is there already" in done(train(caches, runs, "--seed=2", *words))
    assert "3 run records" in done(train(caches, runs, *words, "--seed=2,1", "--seed=0"))


def test_seeds_that_were_lost_are_trained_alone(caches: list[str], tmp_path: Path) -> None:
    done(train(caches, tmp_path / "runs", "--seed=3,4", "--init=random"))
    whole = contents(tmp_path / "runs")
    for path in (tmp_path / "runs" / "random-seed=4").iterdir():
        path.unlink()
    (tmp_path / "runs" / "random-seed=4").rmdir()
    text = done(train(caches, tmp_path / "runs", "--seed=3,4", "--init=random"))
    assert "Seed 4 (" not in text  # the only one
    assert contents(tmp_path / "runs") == whole


@pytest.mark.parametrize("line", ['seed = "0:2"', "seed = [0, 1]"])
def test_seeds_of_a_file_are_those_of_the_option(
    caches: list[str], tmp_path: Path, line: str
) -> None:
    file = tmp_path / "options.toml"
    file.write_text(f"[train-head]\n{line}\ninit = ['random']\n")
    tomllib.loads(file.read_text())
    done(train(caches, tmp_path / "runs", "--config", str(file)))
    assert {read_info(path)["config"]["seed"] for path in find_records(tmp_path / "runs")} == {0, 1}
    swept = ["sweep", *caches, "--out", str(tmp_path / "runs"), "--config", str(file)]
    sizes = [f"{word[2:].replace('-', '_')}" for word in SIZES]
    text = done(CliRunner().invoke(app, [*swept, *sizes, "device=cpu"]))
    assert "2 runs on 2 streams, 2 recorded already" in text


def test_several_seeds_of_a_file_are_refused_by_a_command_that_takes_one(
    caches: list[str], tmp_path: Path
) -> None:
    file = tmp_path / "options.toml"
    file.write_text('seed = "0:2"\n')
    words = ["align", caches[1], "--out", str(tmp_path / "h.safetensors"), "--config", str(file)]
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 2
    assert "as an integer" in result.output


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("3:3", "--seed 3:3 is not a range"),
        ("a", "got 'a'. Write one"),
        ("0:3:0", "got '0:3:0'. Write one"),
        ("1.5", "got '1.5'. Write one"),
        ("0,,2", "got ''. Write one"),
        ("0..4:lin", "--seed 0..4:lin is not a range: does not say how many values. Write one"),
        ("-1", "got -1"),
        ("-2:1", "got -2"),
        ("4294967296", "got 4294967296"),
        ("0:200000", "--seed 0:200000 is not a range"),
    ],
)
def test_what_is_no_seed_is_refused_with_what_to_write(
    tmp_path: Path, word: str, message: str
) -> None:
    result = train(["--base=b", "--new=n"], tmp_path / "runs", f"--seed={word}")
    assert result.exit_code == 2, (result.output, result.exception)
    shown = " ".join(result.output.replace("│", " ").split())
    assert message in shown
    assert not (tmp_path / "runs").exists()

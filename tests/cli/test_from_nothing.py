"""Streams without `--base` by command: training, reports, repetition, sweeps and exports."""

import json
from pathlib import Path

import numpy as np
import pytest

import clinit
from clinit.errors import ClinitError
from clinit.extract.cache.head import read_head
from clinit.headtrain.protocol.record.format import read_info
from tests.cli.calls import call, done, refused
from tests.cli.made_cache import write_cache
from tests.conftest import Once

SIZES = ("--iterations=6", "--eval-every=3", "--batch-size=8", "--device=cpu")
STARTS = ("--init", "random", "--init", "least-square")


@pytest.fixture(scope="module")
def made(once: Once) -> Path:
    """A cache of four classes, another one, and runs of two starts in two tasks from nothing."""

    def make(folder: Path) -> None:
        for name, seed in (("new", 1), ("base", 0)):
            write_cache(folder / name, seed)
        places = ("--new", folder / "new", "--out", folder / "runs")
        told = done("train-head", *places, "--tasks=2", "--diagnose", *SIZES, *STARTS)
        (folder / "told.txt").write_text(told)

    return once("from-nothing", make)


@pytest.fixture(scope="module")
def record(made: Path) -> Path:
    return made / "runs" / "least-square-calibrated"


def test_the_command_says_that_the_stream_starts_from_nothing(made: Path, record: Path) -> None:
    assert "the stream starts without classes" in (made / "told.txt").read_text()
    info = read_info(record)
    assert info["base"] is None
    assert len(info["tasks"]) == 2
    assert all(task["diagnosis"] for task in info["tasks"])


@pytest.mark.parametrize(
    "options", [(), ("--per-task",), ("--columns=acc_all,d_ls",), ("--means",)]
)
def test_reports_leave_base_classes_out(made: Path, options: tuple[str, ...]) -> None:
    text = done("report", made / "runs", *options)
    assert "A_all" in text
    for absent in ("A_pre", "A_base", "base", "nan", "None"):
        assert absent not in text


@pytest.mark.parametrize("figure", ["curves", "efficiency"])
def test_figures_and_the_page_are_drawn(made: Path, tmp_path: Path, figure: str) -> None:
    places = ("--plot", tmp_path / "a.png", "--figure", figure, "--html", tmp_path / "page.html")
    done("report", made / "runs", *places)
    assert (tmp_path / "a.png").stat().st_size > 1000
    page = (tmp_path / "page.html").read_text()
    assert '"on":["task 1","task 2"]' in page
    assert "base classes" not in page


def test_the_same_command_trains_nothing_again_and_one_with_a_base_is_refused(made: Path) -> None:
    words = ("train-head", "--out", made / "runs", "--tasks=2", *SIZES, *STARTS)
    assert done(*words, "--new", made / "new").count("is already recorded") == 2
    error = refused(call(*words, "--new", made / "new", "--base", made / "base"))
    assert "base classes (none there)" in str(error)


def test_a_sweep_has_the_runs_of_the_command_and_goes_on(made: Path, tmp_path: Path) -> None:
    grid = ("init=random,least-square", "seed=0:2", "tasks=2", "method=rehearsal,slda")
    fixed = ("iterations=6", "eval_every=3", "batch_size=8", "device=cpu")
    words = ("sweep", "--new", made / "new", "--out", tmp_path / "sweep", *grid, *fixed)
    done(*words)
    assert "6 already recorded" in done(*words)
    told = [
        json.loads(path.read_text())["base"] for path in (tmp_path / "sweep").glob("*/run.json")
    ]
    assert told == [None] * 6


def test_python_trains_the_same_runs(made: Path, record: Path) -> None:
    study = {"tasks": 2, "iterations": 6, "eval_every": 3, "batch_size": 8, "device": "cpu"}
    studies = [{**study, "init": init} for init in ("random", "least-square")]
    found = {run.init: run.record.evaluations for run in clinit.train(None, made / "new", studies)}
    stored = {each.init: each.record.evaluations for each in clinit.load_runs(made / "runs")}
    assert all(found[init].equals(stored[init]) for init in stored)
    with pytest.raises(ClinitError, match="without its base classes"):
        clinit.train(None, made / "new", studies, head=record / "head.safetensors")


def test_the_head_of_a_run_is_exported(made: Path, record: Path, tmp_path: Path) -> None:
    text = done("export", record, "--out", tmp_path / "head.npz")
    assert "A head on 8 features of made: 4 classes" in text
    assert read_head(tmp_path / "head.npz").origin["tasks"] == [1, 1, 2, 2]
    np.save(tmp_path / "rows.npy", np.ones((2, 8), np.float32))
    done("predict", tmp_path / "head.npz", tmp_path / "rows.npy")
    assert "NC1" in done("diagnose", made / "new", "--head", tmp_path / "head.npz")


def test_a_network_is_exported_whose_classes_all_arrived(tiny_run: Path, tmp_path: Path) -> None:
    caches = tiny_run.parent / "caches"
    places = ("--new", caches / "new", "--out", tmp_path / "runs", "--tasks=2", *SIZES)
    done("train-head", *places, "--init", "least-square", "--diagnose")  # of one class each
    run_at = tmp_path / "runs" / "least-square-calibrated"
    text = done("export", run_at, "--out", tmp_path / "model")
    assert "2 classes" in text
    assert "base" not in text
    assert "A classifier of images: 2 classes." in (tmp_path / "model" / "README.md").read_text()
    assert "task 2" in done("model", "show", tmp_path / "model")
    image = min((tiny_run.parent / "new" / "val").rglob("*.png"))
    assert "task" in done("predict", tmp_path / "model", image)


@pytest.mark.parametrize(
    ("words", "fact"),
    [
        (("train-head", "--head", "x.safetensors"), "--head needs base classes"),
        (("train-head", "--head-width", "full"), "--head-width full needs base classes"),
        (("train-head", "--tasks", "5"), "5 tasks, but 4 new classes"),
        (("train-top",), "--base"),
        (("sweep", "--top", "init=random"), "--top takes only one cache each"),
        (("sweep", "--head", "x.safetensors", "init=random"), "--head needs base classes"),
        (("sweep", "head_width=full"), "--head-width full needs base classes"),
    ],
)
def test_what_needs_base_classes_is_refused(
    made: Path, tmp_path: Path, words: tuple[str, ...], fact: str
) -> None:
    command, *more = words
    result = call(command, "--new", made / "new", "--out", tmp_path / "runs", *more)
    assert result.exit_code
    assert fact in " ".join(f"{result.output} {result.exception}".split())

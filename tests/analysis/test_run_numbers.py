"""A run that was recorded twice has one number wherever its report names it."""

from __future__ import annotations

import io
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from rich.console import Console

from clinit.analysis.figures.accuracy_matrix import matrix_of
from clinit.analysis.figures.line import starts_of
from clinit.analysis.report.report import Report, load_report, report_of
from clinit.analysis.report.settings import labels
from clinit.headtrain.record.format import RunRecord

MakeRun = Callable[..., RunRecord]
WriteRuns = Callable[..., Path]


@pytest.fixture
def copied(make_run: MakeRun, write_runs: WriteRuns) -> Report:
    """Three seeds of two starts, the first seed recorded twice; random rows learn nothing."""

    def run(init: str, seed: int) -> RunRecord:
        if init == "random":
            return make_run(init, seed=seed, accuracy=lambda task, iteration: -1.0)
        return make_run(init, seed=seed)

    seeds = [run(init, seed) for seed in range(3) for init in ("random", "least-square")]
    again = write_runs(*seeds[:2], folder="again")
    return load_report([write_runs(*seeds, folder="first"), again])


def printed(what: object, width: int = 120) -> str:
    console = Console(file=io.StringIO(), width=width)
    console.print(what)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def cells_below(heading: str, table: str) -> dict[str, set[str]]:
    """Return the numbers in a column, by the initialisation of their line."""
    lines = table.splitlines()
    (top,) = (line for line in lines if re.search(rf"\b{heading}\b", line) and "init" in line)
    end = top.index(heading) + len(heading)
    found: dict[str, set[str]] = {}
    for line in lines[lines.index(top) + 1 :]:
        for init in ("random", "least-square"):
            if init in line[:30]:
                found.setdefault(init, set()).add(line[:end].split()[-1])
    return found


def test_tables_figures_and_notes_give_a_run_the_same_number(copied: Report) -> None:
    path_of = dict(line.removeprefix("run ").split(": ") for line in copied.legend)
    ranked = cells_below("run", printed(copied.ranking(width=120)))
    assert cells_below("run", printed(copied.metrics_table(width=120))) == ranked
    for init, numbers in ranked.items():
        assert len(numbers) == 2
        assert all(Path(path_of[number]).name.startswith(init) for number in numbers)
    names = [matrix_of(start).name for start in starts_of(copied.runs)]
    assert {f"{init} (run {number})" for init, all_ in ranked.items() for number in all_} == {
        *names
    }
    seeds = {run.number: run.config["seed"] for run in copied.runs}
    told = re.findall(r"random \(seed (\d), run (\d)\)", " ".join(copied.notes))
    assert len(told) == 4
    for seed, number in told:
        assert Path(path_of[number]).name.startswith("random")
        assert seeds[int(number)] == int(seed)


def test_no_table_has_two_columns_of_one_name(copied: Report) -> None:
    (heading,) = (row for row in printed(copied.ranking(width=120)).splitlines() if "init" in row)
    assert heading.split()[:4] == ["#", "init", "run", "seeds"]


def test_only_runs_that_were_recorded_twice_have_a_number(
    make_run: MakeRun, write_runs: WriteRuns
) -> None:
    runs = write_runs(make_run("random"), make_run("random"), make_run("least-square"))
    report = load_report([runs])
    assert [run.number for run in report.runs] == [1, 2, None]
    assert labels(report.runs) == ["random (run 1)", "random (run 2)", "least-square"]
    assert report.legend == [f"run 1: {runs / 'random'}", f"run 2: {runs / 'random-1'}"]
    assert load_report([runs / "random"]).legend == []


def test_a_setting_that_one_run_leaves_open_tells_it_apart(make_run: MakeRun) -> None:
    report = report_of([make_run(shots=None), make_run(shots=5)])
    assert report.legend == []
    assert labels(report.runs) == ["random", "random (5 shots)"]
    assert "shots" in printed(report.table(width=120))

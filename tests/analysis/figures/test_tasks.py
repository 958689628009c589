from collections.abc import Callable
from typing import Any

import pytest

from clinit.analysis.figures.line import starts_of
from clinit.analysis.figures.tasks import (
    COLLAPSE,
    STEPS,
    collapse_line,
    first_steps,
    floor_of,
)
from clinit.analysis.report.report import report_of
from clinit.headtrain.record.format import RunRecord

MakeRun = Callable[..., RunRecord]
VALUES = {name: 0.5 + number for number, name in enumerate(COLLAPSE)}


@pytest.mark.parametrize("iterations", [3, 100, 250])
def test_the_first_steps_of_each_task_are_those_of_the_table(
    make_run: MakeRun, iterations: int
) -> None:
    def curve(task: int, step: int) -> float:
        return task + 1.0 / (1 + step)

    (start,) = starts_of(report_of([make_run(iterations=iterations, loss_curve=curve)]).runs)
    lines = first_steps(start)
    assert list(lines) == [1, 2, 3]
    for task, line in lines.items():
        assert line.at.tolist() == list(range(min(iterations, STEPS)))
        expected = [curve(task, step) for step in range(min(iterations, STEPS))]
        assert line.mean == pytest.approx(expected, rel=1e-6)


def diagnosed(record: RunRecord, **changes: Any) -> RunRecord:
    for task in record.info["tasks"]:
        values = {name: value * task["task"] for name, value in VALUES.items()}
        floors = {"nc2_floor": 0.1 * task["task"], "nc3_floor": 0.1 * task["task"]}
        task["diagnosis"] = values | floors | changes  # type: ignore[typeddict-item]
    return record


def test_collapse_is_a_mean_over_seeds_task_by_task(make_run: MakeRun) -> None:
    runs = report_of([diagnosed(make_run()), diagnosed(make_run(seed=1), nc4=1.0)]).runs
    line = collapse_line(starts_of(runs)[0], "nc4")
    assert line.at.tolist() == [1, 2, 3]
    assert line.mean.tolist() == [(VALUES["nc4"] * task + 1.0) / 2 for task in (1, 2, 3)]
    floor = floor_of(runs, "nc2")
    assert floor is not None
    assert floor.mean == pytest.approx([0.1, 0.2, 0.3])
    assert floor_of(runs, "nc1") is None


def test_what_was_not_measured_at_a_task_or_is_not_finite_is_left_out(make_run: MakeRun) -> None:
    record = diagnosed(make_run(), nc2_floor=0.0)
    record.info["tasks"][0]["diagnosis"] = None
    record.info["tasks"][1]["diagnosis"]["d_ls_relative"] = None  # type: ignore[index]
    runs = report_of([record]).runs
    assert collapse_line(starts_of(runs)[0], "d_ls_relative").at.tolist() == [3]
    assert collapse_line(starts_of(runs)[0], "nc1").at.tolist() == [2, 3]
    assert floor_of(runs, "nc2") is None

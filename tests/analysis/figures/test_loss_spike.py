from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from clinit.analysis.figures.line import starts_of
from clinit.analysis.figures.loss_spike import STEPS, first_steps
from clinit.analysis.report.report import load_report
from clinit.errors import RecordError
from clinit.headtrain.record.format import RunRecord

MakeRun = Callable[..., RunRecord]
WriteRuns = Callable[..., Path]


@pytest.mark.parametrize("iterations", [3, 100, 250])
def test_the_first_steps_of_each_task_are_those_of_the_table(
    make_run: MakeRun, write_runs: WriteRuns, iterations: int
) -> None:
    def curve(task: int, step: int) -> float:
        return task + 1.0 / (1 + step)

    record = make_run(iterations=iterations, loss_curve=curve)
    (start,) = starts_of(load_report([write_runs(record)]).runs)
    lines = first_steps(start)
    assert list(lines) == [1, 2, 3]
    for task, line in lines.items():
        assert line.at.tolist() == list(range(min(iterations, STEPS)))
        expected = [curve(task, step) for step in range(min(iterations, STEPS))]
        assert line.mean == pytest.approx(expected, rel=1e-6)


def test_runs_without_a_step_are_left_out(make_run: MakeRun, write_runs: WriteRuns) -> None:
    runs = write_runs(make_run(), make_run("least-square", iterations=0))
    (box,) = load_report([runs]).figure("loss-spike").legends
    assert [text.get_text() for text in box.get_texts()] == ["random"]


def test_without_a_step_there_is_nothing_to_draw(make_run: MakeRun, write_runs: WriteRuns) -> None:
    with pytest.raises(RecordError, match="no run took a step") as caught:
        load_report([write_runs(make_run(iterations=0))]).figure("loss-spike")
    assert "--iterations N" in caught.value.remedy

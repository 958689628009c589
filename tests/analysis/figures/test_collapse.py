from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from clinit.analysis.figures.collapse import MEASURES, floor_of, line_of
from clinit.analysis.figures.line import starts_of
from clinit.analysis.report.report import load_report
from clinit.errors import RecordError
from clinit.headtrain.record.format import RunRecord

MakeRun = Callable[..., RunRecord]
WriteRuns = Callable[..., Path]
VALUES = {name: 0.5 + number for number, name in enumerate(MEASURES.values())}


def diagnosed(record: RunRecord, **changes: Any) -> RunRecord:
    for task in record.info["tasks"]:
        values = {name: value * task["task"] for name, value in VALUES.items()}
        floors = {"nc2_floor": 0.1 * task["task"], "nc3_floor": 0.1 * task["task"]}
        task["diagnosis"] = values | floors | changes
    return record


def test_lines_are_means_over_seeds_task_by_task(make_run: MakeRun, write_runs: WriteRuns) -> None:
    records = [diagnosed(make_run()), diagnosed(make_run(seed=1), nc4=1.0)]
    runs = load_report([write_runs(*records)]).runs
    (start,) = starts_of(runs)
    line = line_of(start, "nc4")
    assert line.at.tolist() == [1, 2, 3]
    assert line.mean.tolist() == [(VALUES["nc4"] * task + 1.0) / 2 for task in (1, 2, 3)]
    floor = floor_of(runs, "nc2")
    assert floor is not None
    assert floor.mean == pytest.approx([0.1, 0.2, 0.3])
    assert floor_of(runs, "nc1") is None


def test_what_was_not_measured_at_a_task_or_is_not_finite_is_left_out(
    make_run: MakeRun, write_runs: WriteRuns
) -> None:
    record = diagnosed(make_run(), nc2_floor=0.0)
    record.info["tasks"][0]["diagnosis"] = None
    record.info["tasks"][1]["diagnosis"]["d_ls_relative"] = None
    runs = load_report([write_runs(record)]).runs
    (start,) = starts_of(runs)
    assert line_of(start, "d_ls_relative").at.tolist() == [3]
    assert line_of(start, "nc1").at.tolist() == [2, 3]
    assert floor_of(runs, "nc2") is None


def test_starts_that_were_not_measured_are_not_drawn(
    make_run: MakeRun, write_runs: WriteRuns
) -> None:
    runs = write_runs(diagnosed(make_run()), make_run("least-square"))
    (box,) = load_report([runs]).figure("collapse").legends
    assert [text.get_text() for text in box.get_texts()] == ["random"]


def test_records_without_a_diagnosis_say_how_to_get_one(three_inits: Path) -> None:
    with pytest.raises(RecordError, match="no run was measured at the ends of its tasks") as caught:
        load_report([three_inits]).figure("collapse")
    assert "`clinit train-head --diagnose`" in caught.value.remedy

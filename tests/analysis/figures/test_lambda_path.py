from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from clinit.analysis.figures.lambda_path import paths_of
from clinit.analysis.report.report import load_report
from clinit.errors import RecordError
from clinit.headtrain.record.format import RunRecord

MakeRun = Callable[..., RunRecord]
WriteRuns = Callable[..., Path]
LAMS = [1e-3, 1e-2, 0.1, 1.0]


def judged(record: RunRecord, **curve: Any) -> RunRecord:
    for task in record.info["tasks"]:
        losses = [0.4 * task["task"], 0.2, None, 3.0]
        task["lambda_curve"] = {"lam": LAMS, "leave_one_out_loss": losses} | curve
        task["initialisation"]["lam"] = 1e-2
    return record


def test_a_path_holds_what_each_lambda_was_judged_by(
    make_run: MakeRun, write_runs: WriteRuns
) -> None:
    (run,) = load_report([write_runs(judged(make_run("least-square")))]).runs
    paths = paths_of(run, "name")
    assert paths is not None
    assert (paths.name, paths.measure) == ("name", "leave-one-out loss")
    assert [path.task for path in paths.tasks] == [1, 2, 3]
    path = paths.tasks[1]
    assert path.line.at.tolist() == [math.log10(lam) for lam in LAMS]
    assert path.line.mean.tolist()[:2] == [0.8, 0.2]
    assert math.isnan(path.line.mean[2])
    assert (path.chosen, path.chosen_value) == (-2.0, 0.2)


def test_a_lambda_of_zero_and_one_off_the_grid_have_no_place(
    make_run: MakeRun, write_runs: WriteRuns
) -> None:
    record = judged(make_run("least-square"), lam=[0.0, 1e-2, 0.1, 1.0])
    record.info["tasks"][1]["initialisation"]["lam"] = 0.5
    record.info["tasks"][2]["initialisation"]["lam"] = None
    (run,) = load_report([write_runs(record)]).runs
    paths = paths_of(run, "name")
    assert paths is not None
    assert [path.chosen_value for path in paths.tasks] == [0.2, None, None]
    assert len(paths.tasks[0].line.at) == 3


def test_runs_that_did_not_choose_say_how_to(three_inits: Path) -> None:
    with pytest.raises(RecordError, match="no run chose its lambda") as caught:
        load_report([three_inits]).figure("lambda-path")
    assert "--lambda auto" in caught.value.remedy

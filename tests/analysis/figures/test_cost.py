from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from clinit.analysis.figures.cost import cost_of
from clinit.analysis.figures.line import starts_of
from clinit.analysis.report.report import load_report
from clinit.errors import RecordError
from clinit.headtrain.record.format import RunRecord

MakeRun = Callable[..., RunRecord]
WriteRuns = Callable[..., Path]


def test_seconds_are_summed_over_tasks_and_averaged_over_seeds(
    make_run: MakeRun, write_runs: WriteRuns
) -> None:
    records = [make_run("least-square", seed=seed) for seed in range(2)]
    for record, total in zip(records, (4.0, 6.0), strict=True):
        record.info["seconds"] = total
        for task in record.info["tasks"]:
            task["initialisation"]["seconds"] = total / 10 * task["task"]
    (start,) = starts_of(load_report([write_runs(*records)]).runs)
    cost = cost_of(start)
    assert cost is not None
    first, total = ((0.4 + 0.8 + 1.2) + (0.6 + 1.2 + 1.8)) / 2, (4.0 + 6.0) / 2
    assert (cost.initialisation, cost.rest) == pytest.approx((first, total - first))
    assert cost.share == pytest.approx(100 * first / total)


def test_a_run_without_time_has_no_share(make_run: MakeRun, write_runs: WriteRuns) -> None:
    record = make_run()
    record.info["seconds"] = 0.0
    for task in record.info["tasks"]:
        task["initialisation"]["seconds"] = 0.0
    (start,) = starts_of(load_report([write_runs(record)]).runs)
    cost = cost_of(start)
    assert cost is not None
    assert cost.share == 0.0
    load_report([write_runs(record, folder="again")]).figure("cost").draw_without_rendering()


@pytest.mark.parametrize("lacking", ["run", "task"])
def test_a_record_without_times_says_how_to_get_them(
    make_run: MakeRun, write_runs: WriteRuns, lacking: str
) -> None:
    record = make_run()
    if lacking == "run":
        record.info["seconds"] = None
    else:
        del record.info["tasks"][1]["initialisation"]["seconds"]
    with pytest.raises(RecordError, match="no record says how many seconds") as caught:
        load_report([write_runs(record)]).figure("cost")
    assert "`clinit rerun RUN --out FOLDER`" in caught.value.remedy

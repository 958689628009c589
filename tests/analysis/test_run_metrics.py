from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from clinit.analysis.metrics.accuracy import mean_transfer, transfer_into
from clinit.analysis.metrics.cost import initialisation_seconds, initialisation_share
from clinit.analysis.report.measures import FURTHER_MEASURES, MEANS
from clinit.analysis.report.report import load_report, report_of, runs_of
from clinit.analysis.report.run import RunSummary
from clinit.analysis.report.settings import common
from clinit.headtrain.record.format import RunRecord

MakeRun = Callable[..., RunRecord]


def tasks(*seconds: float | None) -> list[dict[str, Any]]:
    return [
        {"task": number, "initialisation": {"seconds": each}}
        for number, each in enumerate(seconds, 1)
    ]


def test_the_seconds_of_initialisation_are_those_of_all_tasks() -> None:
    assert initialisation_seconds(tasks(1.0, 2.5)) == 3.5
    assert initialisation_share(tasks(1.0, 2.5), 14.0) == 0.25
    assert initialisation_share(tasks(0.0, 0.0), 2.0) == 0.0


@pytest.mark.parametrize(
    "told", [[], tasks(1.0, None), [{"task": 1}], [{"task": 1, "initialisation": None}]]
)
def test_an_initialisation_that_was_not_timed_has_no_seconds(told: Sequence[Any]) -> None:
    assert initialisation_seconds(told) is None
    assert initialisation_share(told, 3.0) is None


@pytest.mark.parametrize("run", [None, 0.0])
def test_a_run_without_a_time_has_no_share(run: float | None) -> None:
    assert initialisation_share(tasks(1.0), run) is None


def test_a_probe_stands_with_the_task_that_was_probed() -> None:
    told: list[dict[str, Any]] = [
        {"task": 1, "forward_transfer": {"top1": 0.5, "task": 2}},
        {"task": 2, "forward_transfer": {"top1": 0.25}},  # earlier records do not name the task
        {"task": 3},
    ]
    assert [transfer_into(told, task) for task in (1, 2, 3, 4)] == [None, 50.0, 25.0, None]
    assert [mean_transfer([task]) for task in told] == [50.0, 25.0, None]
    assert mean_transfer(told) == 37.5


def test_rows_hold_the_metrics_of_the_run_and_of_its_tasks(make_run: MakeRun) -> None:
    record = make_run("least-square")
    told: list[Any] = record.info["tasks"]
    told[0]["forward_transfer"] = {"top1": 0.5, "task": 2}
    told[1]["diagnosis"] = {"d_ls": 9.0, "d_ls_relative": 0.9}
    told[2]["diagnosis"] = {"d_ls": 3.0, "d_ls_relative": 0.5}
    row = RunSummary.of(record).row()
    assert row["initialisation_seconds"] == pytest.approx(3 * 0.02)
    assert row["initialisation_share"] == pytest.approx(0.06 / 4.5)
    assert (row["d_ls"], row["d_ls_relative"]) == (3.0, 0.5)
    assert row["last_accuracy"] == row["final"]["acc_all"]
    matrix = row["accuracy_matrix"]
    drops = [matrix[2][task] - matrix[task - 1][task] for task in (1, 2)]
    assert row["backward_transfer"] == pytest.approx(sum(drops) / 2)
    assert [task["forward_transfer"] for task in row["tasks"]] == [50.0, None, None]
    assert [task["forward_transfer_into"] for task in row["tasks"]] == [None, 50.0, None]


def test_the_start_is_the_mean_of_tasks_before_their_first_step(
    make_run: MakeRun, write_runs: Callable[..., Path]
) -> None:
    shares = {1: 0.1, 2: 0.35, 3: 0.6}
    record = make_run(
        accuracy=lambda task, i: 0.9 if i else shares[task],
        loss_curve=lambda task, i: 0.5 if i else float(task),
    )
    images = {row: task for row, _, task, *_ in record.classes.iter_rows()}
    starts = []
    for task in shares:
        correct = total = 0
        for at, iteration, row, right, every, *_ in record.evaluations.iter_rows():
            if (at, iteration, images[row]) == (task, 0, task):
                correct, total = correct + right, total + every
        starts.append(100 * correct / total)
    for skip_start in (False, True):
        row = RunSummary.of(record, skip_start=skip_start).row()
        assert row["acc_new_start"] == pytest.approx(sum(starts) / 3)
        assert [task["acc_new_start"] for task in row["tasks"]] == pytest.approx(starts)
        assert row["loss_new_start"] == 2.0
    report = load_report([write_runs(record)])
    assert f",{row['acc_new_start']}," in report.csv()
    values = json.loads(report.means_json())[0]["values"]
    assert values["acc_new_start"]["mean"] == pytest.approx(sum(starts) / 3)
    assert "loss_new_start_deviation" in report.means_csv()


def test_a_run_that_was_not_diagnosed_has_no_deviation(make_run: MakeRun) -> None:
    row = RunSummary.of(make_run()).row()
    assert (row["d_ls"], row["d_ls_relative"]) == (None, None)


def test_every_number_is_defined_in_the_documentation() -> None:
    page = (Path(__file__).parents[2] / "docs" / "metrics.md").read_text(encoding="utf-8")
    names = {re.sub(r"_9[059]$", "_90", name) for name in MEANS}
    assert [name for name in sorted(names) if f"`{name}`" not in page] == []
    for measure in FURTHER_MEASURES:
        assert measure.heading in page or measure.name.startswith("iterations_to"), measure


def stopped(record: RunRecord, after: int) -> RunRecord:
    """Cut a record as `--stop-after` does: the classes of all tasks stay in the list."""
    record.info["config"]["stop_after"] = after
    record.info["tasks"] = record.info["tasks"][:after]
    learnt = pl.col("task") <= after
    assert record.mistakes is not None
    return replace(
        record,
        steps=record.steps.filter(learnt),
        evaluations=record.evaluations.filter(learnt),
        points=record.points.filter(learnt),
        mistakes=record.mistakes.filter(learnt),
    )


def test_a_run_that_stopped_early_has_the_metrics_of_the_tasks_it_learnt(
    make_run: MakeRun, write_runs: Callable[..., Path]
) -> None:
    inits = ("random", "least-square")
    early = load_report([write_runs(*(stopped(make_run(init), 2) for init in inits))])
    whole = report_of([make_run(init) for init in inits])
    for row, other in zip(early.rows(), whole.rows(), strict=True):
        matrix = other["accuracy_matrix"]
        assert row["last_accuracy"] == other["tasks"][1]["acc_all_end"]
        assert row["accuracy_matrix"] == [line[:3] for line in matrix[:2]]
        assert row["backward_transfer"] == pytest.approx(matrix[1][1] - matrix[0][1])
        assert row["acc_in_task"] == pytest.approx(
            sum(task["acc_in_task"] for task in other["tasks"][:2]) / 2
        )
        assert row["initialisation_seconds"] == pytest.approx(2 * 0.02)
        reached = [task["iterations_to_95"] for task in other["tasks"][:2]]
        assert row["iterations_to_95"] == sum(reached) / 2
        assert len(row["tasks"]) == 2
    assert "3 tasks, the first 2 learnt, 200 iterations" in common(early.runs, ())


def test_the_metrics_are_columns_of_the_csv_and_of_the_table_of_runs(make_run: MakeRun) -> None:
    records = [make_run("random"), make_run("least-square")]
    names = {
        *("acc_pre_alone", "acc_in_task", "last_accuracy", "backward_transfer", "forgetting"),
        *("average_incremental_accuracy", "spike_area", "spike_height", "iterations_to_90"),
        *("seconds_to_95", "share_reaching_99", "initialisation_seconds", "initialisation_share"),
        *("d_ls", "d_ls_relative"),
    }
    report = report_of(records)
    assert names <= {*report.csv().splitlines()[0].split(",")}
    assert names <= {*runs_of(records).table().columns}
    of_tasks = {"spike_area", "iterations_to_90", "seconds_to_99", "forward_transfer_into"}
    assert of_tasks <= {*report.csv(per_task=True).splitlines()[0].split(",")}


def test_a_row_holds_the_pairs_that_are_confused_most_often(make_run: MakeRun) -> None:
    record = make_run("random", tasks=2)
    assert record.mistakes is not None
    row = report_of([record]).runs[0].row()
    origin = dict(record.classes.select("row", "task").iter_rows())
    names = dict(record.classes.select("row", "name").iter_rows())
    counts: dict[tuple[str, str], int] = {}
    for task, true, _, predicted in record.mistakes.iter_rows():
        if task == 2 and origin[true] != origin[predicted]:
            pair = names[true], names[predicted]
            counts[pair] = counts.get(pair, 0) + 1
    found = {
        (each["true_class"], each["predicted_class"]): each["count"] for each in row["confusions"]
    }
    assert found
    assert len(found) == min(10, len(counts))
    assert found.items() <= counts.items()
    assert min(found.values()) >= max((v for k, v in counts.items() if k not in found), default=0)


def test_a_record_without_mistakes_has_no_confusions(make_run: MakeRun) -> None:
    record = replace(make_run("random"), mistakes=None)
    assert report_of([record]).runs[0].row()["confusions"] is None

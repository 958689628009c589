import csv
import io
import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from clinit.analysis.report import ReportView
from clinit.analysis.report.measures import MEANS
from clinit.analysis.report.run import RunSummary
from clinit.analysis.report.settings import common
from clinit.analysis.report.tables import run_table
from clinit.analysis.runs import load_runs, runs_of
from clinit.errors import RecordError
from clinit.headtrain.protocol.record.format import RunRecord
from tests.analysis.conftest import MakeRun, WriteRuns
from tests.analysis.printed import printed

INITS = ("random", "class-mean", "least-square")


def test_a_row_is_the_mean_over_all_evaluation_points(make_run: MakeRun) -> None:
    row = RunSummary.of(make_run(loss_curve=lambda task, iteration: task + iteration / 100)).row()
    assert row["loss_new"] == pytest.approx(2 + 1)
    assert row["evaluation_points"] == 15
    for name in ("acc_pre", "acc_new", "acc_old", "acc_all", "acc_in_task"):
        assert row[name] == pytest.approx(sum(task[name] for task in row["tasks"]) / 3)


def test_rows_hold_the_metrics_of_the_run_and_of_its_tasks(make_run: MakeRun) -> None:
    record = make_run("least-square")
    told: list[Any] = record.info["tasks"]
    told[0]["forward_transfer"] = {"top1": 0.5, "task": 2}
    told[1]["diagnosis"] = {"d_ls": 9.0, "d_ls_relative": 0.9}
    told[2]["diagnosis"] = {"d_ls": 3.0, "d_ls_relative": 0.5}
    row = RunSummary.of(record).row()
    assert row["initialisation_seconds"] == pytest.approx(3 * 0.02)
    assert row["initialisation_share"] == pytest.approx(0.06 / 4.5)
    assert (row["d_ls"], row["d_ls_relative"], row["forward_transfer"]) == (3.0, 0.5, 50.0)
    assert row["last_accuracy"] == row["final"]["acc_all"]
    matrix = row["accuracy_matrix"]
    shape = [[value is not None for value in line] for line in matrix]
    assert shape == [[on <= after for on in range(4)] for after in (1, 2, 3)]
    drops = [matrix[2][task] - matrix[task - 1][task] for task in (1, 2)]
    assert row["backward_transfer"] == pytest.approx(sum(drops) / 2)
    assert [task["forward_transfer"] for task in row["tasks"]] == [50.0, None, None]
    assert [task["forward_transfer_into"] for task in row["tasks"]] == [None, 50.0, None]
    assert [task["task"] for task in row["tasks"]] == [1, 2, 3]
    assert {task["initialisation"]["factor"] for task in row["tasks"]} == {21.5}
    bare = RunSummary.of(make_run(iterations=0)).row()
    assert [bare[name] for name in ("d_ls", "forward_transfer")] == [None] * 2


def test_gains_are_those_over_the_random_run(three_inits: Path) -> None:
    rows = load_runs(three_inits).rows()
    assert [row["init"] for row in rows] == [*INITS]
    assert {part["gain_equal_level"] for part in (rows[0], *rows[0]["tasks"])} == {1.0}
    assert (rows[2]["gain_tasks_reached"], rows[2]["gain_tasks"]) == (3, 3)


def test_a_run_that_stopped_early_has_the_metrics_of_the_tasks_it_learnt(make_run: MakeRun) -> None:
    """As of `--stop-after`: the classes of all tasks stay in the list."""
    stopped: list[RunRecord] = []
    for record in map(make_run, INITS[::2]):
        info: Any = record.info
        config = {**info["config"], "stop_after": 2}
        cut: Any = {**info, "config": config, "tasks": info["tasks"][:2]}
        names = ("steps", "evaluations", "points", "mistakes")
        tables = {name: getattr(record, name).filter(pl.col("task") <= 2) for name in names}
        stopped.append(replace(record, info=cut, **tables))
    early, whole = runs_of(stopped), runs_of([make_run(init) for init in INITS[::2]])
    for row, other in zip(early.rows(), whole.rows(), strict=True):
        matrix = other["accuracy_matrix"]
        assert row["last_accuracy"] == other["tasks"][1]["acc_all_end"]
        assert row["accuracy_matrix"] == [line[:3] for line in matrix[:2]]
        assert row["backward_transfer"] == pytest.approx(matrix[1][1] - matrix[0][1])
        gains = [task["gain_equal_level"] for task in other["tasks"][:2]]
        assert row["gain_equal_level"] == pytest.approx(sum(gains) / 2)
    assert "3 tasks, the first 2 learnt, 200 iterations" in common(early.runs, ())


def test_json_and_csv_hold_the_rows(make_run: MakeRun) -> None:
    nan = make_run("least-square", loss_curve=lambda task, iteration: float("nan"))
    report = runs_of([make_run("random"), nan])
    rows = json.loads(report.as_text(ReportView(format="json")))
    assert rows[0] == report.rows()[0]
    assert rows[1]["loss_new"] is None
    lines = list(csv.DictReader(io.StringIO(report.as_text(ReportView(format="csv")))))
    assert [line["init"] for line in lines] == ["random", "least-square"]
    assert float(lines[1]["acc_new"]) == pytest.approx(report.rows()[1]["acc_new"])
    names = {"d_ls", "final_acc_all"}
    assert names <= {*lines[0]}
    assert names - {"final_acc_all"} <= {*runs_of([nan]).table().columns}


def test_every_number_is_defined_in_the_documentation() -> None:
    page = (Path(__file__).parents[3] / "docs" / "metrics.md").read_text(encoding="utf-8")
    assert [name for name in sorted(MEANS) if f"`{name}`" not in page] == []


def test_a_record_is_read_once_and_an_incomplete_one_is_refused(
    make_run: MakeRun, write_runs: WriteRuns
) -> None:
    odd = write_runs(make_run("random"), folder=os.fsdecode(b"odd\xff"))
    report = load_runs(odd, odd / "random")
    assert len(report.runs) == 1
    assert r"odd\xff/random" in report.as_text(ReportView(format="csv"))
    assert r"odd\xff/random" in load_runs(odd).table()["path"].to_list()[0]
    assert "random" in printed(run_table(report.runs))
    (odd / "random" / "evaluations.parquet").unlink()
    with pytest.raises(RecordError, match=r"evaluations\.parquet"):
        load_runs(odd)


@pytest.mark.parametrize("place", ["none", ""])
def test_a_place_without_records_is_refused(tmp_path: Path, place: str) -> None:
    with pytest.raises(RecordError, match=str(tmp_path / place)) as caught:
        load_runs(tmp_path / place)
    assert "clinit train-head --base" in caught.value.remedy


def test_runs_are_compared_across_initialisations_and_places_only(make_run: MakeRun) -> None:
    key = RunSummary.of(make_run("random")).key
    alike = make_run("least-square", "norm", lam=5.0, bias="keep", class_mean="unit", device="cuda")
    assert RunSummary.of(alike).key == key
    explicit = make_run("least-square", precision="float32")
    assert RunSummary.of(explicit).key == key, "earlier records do not name a precision"
    later = make_run("least-square", weighting="sample", init_rows="buffer")
    assert RunSummary.of(later).key == key, "settings of the initialisation"
    for other in ({"seed": 1}, {"loss": "mse"}, {"lr": 0.1}, {"buffer": 1}, {"head_width": "full"}):
        assert RunSummary.of(make_run("least-square", **other)).key != key
    moved = make_run("least-square")
    moved.info["base"]["path"] = "elsewhere/imagenet_mini"
    assert RunSummary.of(moved).key == key
    moved.info["new"]["fingerprint"] = {"weights": "b"}
    assert RunSummary.of(moved).key != key


def test_notes_of_the_runs_are_said_once(make_run: MakeRun) -> None:
    note = "990 of 1,000 base classes have no validation image: [left out]"
    notes = runs_of([make_run(init, notes=[note]) for init in INITS]).notes
    assert notes.count(note) == 1
    assert len(set(notes)) == len(notes)


def test_a_terminal_has_two_notes_and_the_number_of_the_others(make_run: MakeRun) -> None:
    report = runs_of([make_run(init, notes=["one", "two", "three"]) for init in INITS])
    shown = [*report.told(ReportView())]
    assert shown == ["one", "two", "1 more: .save_html(FILE)"]  # the runs were never written
    fallen = make_run("random", notes=["one"], accuracy=lambda _, i: 0.5 - 0.2 * (i > 0))
    assert runs_of([fallen]).notes[0].startswith("Training ends below its start in 1 of 1 run: ")


def test_a_missing_gain_has_its_reason(make_run: MakeRun) -> None:
    def reason(random: RunRecord, **settings: object) -> str:
        return runs_of([random, make_run("least-square", **settings)]).notes[0]

    alone = runs_of([make_run("random"), make_run("least-square", seed=1)]).notes
    assert any("`--init random`" in note for note in alone)
    # Random rows recognise nothing before the first step: that is not the reason.
    unstepped = make_run("random", iterations=0, accuracy=lambda task, i: -0.05)
    assert reason(unstepped, iterations=0) == (
        "No gain over random in tasks 1, 2, 3: there is no evaluation after the start."
    )
    assert "in task 2: there is no test image" in reason(make_run(untested_task=2), untested_task=2)
    some = make_run("random", accuracy=lambda task, i: 0.8 if task == 1 else -0.05)
    assert "in tasks 2, 3: random's best accuracy on the new classes is 0 %" in reason(some)

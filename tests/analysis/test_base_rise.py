from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import polars as pl
import pytest

from clinit.analysis.report.notes import rises
from clinit.analysis.report.report import report_of
from clinit.headtrain.record.format import RunRecord

MakeRun = Callable[..., RunRecord]


def began_at(record: RunRecord, share: float, *, tested: int = 4) -> RunRecord:
    """Let the base head alone begin at a share of right images; test the first classes only."""
    base = pl.col("row") < 4
    start = (pl.col("task") == 1) & (pl.col("iteration") == 0) & base
    right = (share * pl.col("total")).round().cast(pl.Int32)
    evaluations = record.evaluations.with_columns(
        correct_in_task=pl.when(start).then(right).otherwise("correct_in_task")
    ).filter(~base | (pl.col("row") < tested))
    classes = record.classes.with_columns(
        val_rows=pl.when(base & (pl.col("row") >= tested)).then(0).otherwise("val_rows"),
        train_rows=pl.when(base & (pl.col("row") < tested)).then(90).otherwise("train_rows"),
    )
    return replace(record, evaluations=evaluations, classes=classes)


def test_a_rise_is_said_with_the_classes_and_rows_that_explain_it(make_run: MakeRun) -> None:
    records = [began_at(make_run(init), 0.6, tested=1) for init in ("random", "least-square")]
    report = report_of(records)
    ends = [row["final"]["acc_pre"] for row in report.rows()]
    assert [row["acc_pre_before"] for row in report.rows()] == [60.0, 60.0]
    words = " ".join(rises(report.runs))
    for fact in ("60.0 %", f"{max(ends):.1f} %", "1 of 4 base classes", "90 of 180 training rows"):
        assert fact in words
    assert " ".join(rises(report.runs)) in report.notes


def test_where_all_classes_are_tested_that_is_not_the_reason(make_run: MakeRun) -> None:
    words = " ".join(rises(report_of([began_at(make_run(), 0.5)]).runs))
    assert "training fits the base classes to this cache" in words
    assert "are tested" not in words


@pytest.mark.parametrize("share", [0.85, 0.9, 1.0])
def test_a_small_rise_and_a_fall_are_not_said(make_run: MakeRun, share: float) -> None:
    assert " ".join(rises(report_of([began_at(make_run(), share)]).runs)) == ""


def test_records_without_the_counts_have_no_start(make_run: MakeRun) -> None:
    record = make_run()
    unknown = pl.lit(None, pl.Int32).alias("correct_in_task")
    old = replace(record, evaluations=record.evaluations.with_columns(unknown))
    report = report_of([old])
    assert report.rows()[0]["acc_pre_before"] is None
    assert " ".join(rises(report.runs)) == ""


def test_a_head_that_is_solved_as_a_whole_has_no_start(make_run: MakeRun) -> None:
    record = make_run()
    config: Any = record.info["config"]
    del config["init"], config["scale"]
    config["method"] = "ridge"
    assert report_of([record]).rows()[0]["acc_pre_before"] is None

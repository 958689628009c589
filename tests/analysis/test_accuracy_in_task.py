from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clinit.analysis.metrics.accuracy import IN_TASK, points_in_task
from clinit.analysis.report.run import RunSummary
from clinit.headtrain.record.format import RunRecord

MakeRun = Callable[..., RunRecord]
ORIGINS = (0, 0, 1, 1, 2)
CLASSES = pl.DataFrame(
    {"row": range(5), "task": ORIGINS}, schema={"row": pl.Int32, "task": pl.Int16}
)
SCHEMA = {
    **{"task": pl.Int16, "iteration": pl.Int32, "row": pl.Int32},
    **{"total": pl.Int32, "correct_in_task": pl.Int32},
}
counts = st.lists(
    st.integers(0, 9).flatmap(lambda total: st.tuples(st.just(total), st.integers(0, total))),
    min_size=len(ORIGINS),
    max_size=len(ORIGINS),
)


def naive(rows: Sequence[tuple[int, ...]]) -> dict[tuple[int, int], tuple[float | None, ...]]:
    """Both accuracies, image by image."""
    images: dict[tuple[int, int], list[tuple[int, bool]]] = {}
    for task, iteration, row, total, right in rows:
        for number in range(total):
            images.setdefault((task, iteration), []).append((ORIGINS[row], number < right))
    found = {}
    for task, iteration, *_ in rows:
        here = images.get((task, iteration), [])
        groups = ([right for origin, right in here if origin == 0], [right for _, right in here])
        found[task, iteration] = tuple(100 * sum(g) / len(g) if g else None for g in groups)
    return found


@settings(deadline=None)
@given(st.lists(counts, min_size=4, max_size=4))
def test_both_accuracies_are_those_of_counting_images_one_by_one(
    evaluations: list[list[tuple[int, int]]],
) -> None:
    moments = [(1, 0), (1, 50), (2, 0), (2, 50)]
    rows = [
        (task, iteration, row, *pair)
        for (task, iteration), pairs in zip(moments, evaluations, strict=True)
        for row, pair in enumerate(pairs)
        if ORIGINS[row] <= task
    ]
    found = points_in_task(pl.DataFrame(rows, schema=SCHEMA, orient="row"), CLASSES)
    expected = naive(rows)
    assert [(t, i) for t, i, *_ in found.iter_rows()] == moments
    for task, iteration, *accuracies in found.iter_rows():
        assert tuple(accuracies) == pytest.approx(expected[task, iteration])


def test_records_without_the_counts_have_neither(make_run: MakeRun) -> None:
    record = make_run()
    older = record.evaluations.select("task", "iteration", "row", "correct", "total")
    none = pl.lit(None, pl.Int32).alias("correct_in_task")
    for evaluations in (older, older.with_columns(none)):
        points = points_in_task(evaluations, record.classes)
        assert len(points) == 3 * 5
        assert [points[name].null_count() for name in IN_TASK] == [15, 15]


def test_a_count_that_is_missing_is_not_taken_for_none_correct(make_run: MakeRun) -> None:
    record = in_task(make_run(), 20)
    base = pl.when(pl.col("row") > 0).then("correct_in_task")
    points = points_in_task(record.with_columns(correct_in_task=base), make_run().classes)
    assert [points[name].null_count() for name in IN_TASK] == [15, 15]


def in_task(record: RunRecord, right: int) -> pl.DataFrame:
    return record.evaluations.with_columns(pl.lit(right, pl.Int32).alias("correct_in_task"))


def test_a_run_has_their_means_over_evaluations_and_their_last_values(make_run: MakeRun) -> None:
    record = make_run(untested_task=2)
    share = 5 + pl.col("iteration") // 50 + 2 * pl.col("task")
    evaluations = in_task(record, 0).with_columns(correct_in_task=share.cast(pl.Int32))
    record = replace(record, evaluations=evaluations)
    row = RunSummary.of(record).row()
    every = [100 * (5 + i + 2 * task) / 20 for task in (1, 2, 3) for i in range(5)]
    later = [100 * (5 + i + 2 * task) / 20 for task in (1, 2, 3) for i in range(1, 5)]
    for name in IN_TASK:
        assert row[name] == pytest.approx(sum(every) / 15)
        assert row["final"][name] == pytest.approx(75)
        assert row["tasks"][1][name] == pytest.approx(sum(every[5:10]) / 5)
        assert row["tasks"][1][f"{name}_start"] == pytest.approx(45)
    skipped = RunSummary.of(record, skip_start=True).row()
    assert skipped["acc_pre_alone"] == pytest.approx(sum(later) / 12)

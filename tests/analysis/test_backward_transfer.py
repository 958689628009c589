from __future__ import annotations

from collections.abc import Callable, Mapping

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clinit.analysis.metrics.accuracy import (
    accuracy_matrix,
    accuracy_points,
    backward_transfer,
    last_accuracy,
)
from clinit.headtrain.record.format import RunRecord

MakeRun = Callable[..., RunRecord]
SCHEMA = {"after_task": pl.Int16, "on_task": pl.Int16, "accuracy": pl.Float64}
percent = st.one_of(st.none(), st.floats(0, 100))


def matrix_of(cells: Mapping[tuple[int, int], float | None]) -> pl.DataFrame:
    rows = [(after, on, value) for (after, on), value in cells.items()]
    return pl.DataFrame(rows, schema=SCHEMA, orient="row")


@settings(deadline=None)
@given(st.integers(1, 6), st.data())
def test_backward_transfer_is_the_formula(tasks: int, data: st.DataObject) -> None:
    cells = {
        (after, on): data.draw(percent) for after in range(1, tasks + 1) for on in range(after + 1)
    }
    changes = []
    for task in range(1, tasks):
        final, own = cells[tasks, task], cells[task, task]
        if final is not None and own is not None:
            changes.append(final - own)
    expected = sum(changes) / len(changes) if changes else None
    found = backward_transfer(matrix_of(cells))
    assert found == (None if expected is None else pytest.approx(expected, abs=1e-9))


def test_learning_more_of_an_earlier_task_is_positive() -> None:
    cells = {(1, 0): 90.0, (1, 1): 60.0, (2, 0): 10.0, (2, 1): 70.0, (2, 2): 50.0}
    assert backward_transfer(matrix_of(cells)) == pytest.approx(10)
    assert backward_transfer(matrix_of({(1, 0): 90.0, (1, 1): 60.0})) is None


def test_a_task_without_test_images_is_left_out(make_run: MakeRun) -> None:
    record = make_run(untested_task=1)
    matrix = accuracy_matrix(record.evaluations, record.classes)
    cells = {(after, on): value for after, on, value in matrix.iter_rows()}
    assert backward_transfer(matrix) == pytest.approx(cells[3, 2] - cells[2, 2])


def test_a_run_that_stopped_early_ends_with_its_last_learnt_task(make_run: MakeRun) -> None:
    record = make_run()
    evaluations = record.evaluations.filter(pl.col("task") < 3)  # all classes stay in the list
    matrix = accuracy_matrix(evaluations, record.classes)
    cells = {(after, on): value for after, on, value in matrix.iter_rows()}
    assert backward_transfer(matrix) == pytest.approx(cells[2, 1] - cells[1, 1])
    points = accuracy_points(evaluations, record.classes)
    seen = evaluations.filter((pl.col("task") == 2) & (pl.col("iteration") == 200))
    assert seen["row"].n_unique() == 4 + 2 * 3
    assert last_accuracy(points) == pytest.approx(100 * seen["correct"].sum() / seen["total"].sum())
    assert last_accuracy(points) != last_accuracy(
        accuracy_points(record.evaluations, record.classes)
    )

from collections.abc import Sequence
from dataclasses import replace

import polars as pl
import pytest
from hypothesis import given, strategies as st

from clinit.analysis.metrics import accuracy
from clinit.analysis.report.run import RunSummary
from tests.analysis.conftest import MakeRun

ORIGINS = (0, 0, 1, 1, 2)
CLASSES = pl.DataFrame(
    {"row": range(5), "task": ORIGINS}, schema={"row": pl.Int32, "task": pl.Int16}
)
SCHEMA = {
    **{"task": pl.Int16, "iteration": pl.Int32, "row": pl.Int32, "total": pl.Int32},
    **{"correct": pl.Int32, "correct_in_task": pl.Int32},
}
counts = st.lists(
    st.integers(0, 9).flatmap(
        lambda total: st.tuples(st.just(total), st.integers(0, total), st.integers(0, total))
    ),
    min_size=len(ORIGINS),
    max_size=len(ORIGINS),
)


def naive(rows: Sequence[tuple[int, ...]]) -> dict[tuple[int, int], list[float | None]]:
    """The six accuracies, image by image."""
    images: dict[tuple[int, int], list[tuple[int, bool, bool]]] = {}
    for task, iteration, row, total, right, in_task in rows:
        seen = images.setdefault((task, iteration), [])
        seen += [(ORIGINS[row], n < right, n < in_task) for n in range(total)]
    found = {}
    for (task, iteration), seen in images.items():
        groups = [
            [right for origin, right, _ in seen if origin == 0],
            [right for origin, right, _ in seen if origin == task],
            [right for origin, right, _ in seen if origin < task],
            [right for _, right, _ in seen],
            [right for origin, _, right in seen if origin == 0],
            [right for _, _, right in seen],
        ]
        found[task, iteration] = [100 * sum(g) / len(g) if g else None for g in groups]
    return found


@given(st.lists(counts, min_size=4, max_size=4))
def test_accuracies_are_those_of_counting_images_one_by_one(
    evaluations: list[list[tuple[int, int, int]]],
) -> None:
    """Counts of classes that have not come yet, which the table holds too, do not count."""
    moments = [(1, 0), (1, 50), (2, 0), (2, 50)]
    rows = [
        (*moment, row, *each)
        for moment, numbers in zip(moments, evaluations, strict=True)
        for row, each in enumerate(numbers)
    ]
    found = accuracy.accuracy_points(pl.DataFrame(rows, schema=SCHEMA, orient="row"), CLASSES)
    expected = naive([row for row in rows if ORIGINS[row[2]] <= row[0]])
    assert [(task, iteration) for task, iteration, *_ in found.iter_rows()] == moments
    for task, iteration, *accuracies in found.iter_rows():
        assert accuracies == pytest.approx(expected[task, iteration])


@pytest.mark.parametrize("unknown", ["column", "values", "value"])
def test_counts_that_a_record_lacks_are_not_taken_for_none_correct(
    make_run: MakeRun, unknown: str
) -> None:
    record, none = make_run(), pl.lit(None, pl.Int32)
    column = {
        "column": none,
        "values": none,
        "value": pl.when(pl.col("row") > 0).then("correct_in_task"),
    }[unknown]
    evaluations = record.evaluations.with_columns(correct_in_task=column)
    if unknown == "column":
        evaluations = evaluations.drop("correct_in_task")
    points = accuracy.accuracy_points(evaluations, record.classes)
    assert [points[name].null_count() for name in (*accuracy.IN_TASK, "acc_all")] == [15, 15, 0]
    assert RunSummary.of(replace(record, evaluations=evaluations)).row()["acc_pre_before"] is None


def test_the_matrix_holds_the_accuracy_on_each_task_at_the_end_of_each_task(
    make_run: MakeRun,
) -> None:
    record = make_run(untested_task=2)
    ends = {1: 150, 2: 200, 3: 200}  # a shorter task among them
    kept = pl.col("iteration") <= pl.col("task").replace_strict(ends)
    evaluations = record.evaluations.filter(kept)
    found = accuracy.accuracy_matrix(evaluations, record.classes)
    origin = dict(record.classes.select("row", "task").iter_rows())
    cells: dict[tuple[int, int], list[int]] = {}
    for task, iteration, row, right, total, *_ in evaluations.iter_rows():
        if iteration == ends[task]:
            cell = cells.setdefault((task, origin[row]), [0, 0])
            cell[0], cell[1] = cell[0] + right, cell[1] + total
    assert {(after, on): value for after, on, value in found.iter_rows()} == pytest.approx(
        {place: 100 * right / total for place, (right, total) in cells.items()}
    )
    points = accuracy.accuracy_points(evaluations, record.classes)
    at = {(task, iteration): value for task, iteration, *_, value, _, _ in points.iter_rows()}
    values = [at[end] for end in ends.items()]
    shorter = replace(record, evaluations=evaluations, points=record.points.filter(kept))
    row = RunSummary.of(shorter).row()
    assert row["last_accuracy"] == values[-1]
    assert row["average_incremental_accuracy"] == pytest.approx(sum(values) / 3)


def matrix_of(cells: dict[tuple[int, int], float | None]) -> pl.DataFrame:
    schema = {"after_task": pl.Int16, "on_task": pl.Int16, "accuracy": pl.Float64}
    rows = [(after, on, value) for (after, on), value in cells.items()]
    return pl.DataFrame(rows, schema=schema, orient="row")


def test_forgetting_is_the_mean_drop_from_the_best_accuracy_of_earlier_tasks() -> None:
    tasks = {(1, 1): 80.0, (2, 1): 85.0, (3, 1): 60.0, (2, 2): 70.0, (3, 2): 72.0, (3, 3): 50.0}
    base = {(1, 0): 90.0, (2, 0): 50.0, (3, 0): 10.0}
    # Chaudhry et al.: the best among earlier evaluations, so learning more is negative.
    found = accuracy.forgetting(matrix_of({**tasks, **base}))
    assert found == pytest.approx(((85 - 60) + (70 - 72)) / 2)
    assert accuracy.forgetting(matrix_of({(1, 0): 90.0, (1, 1): 80.0})) is None
    assert accuracy.forgetting(matrix_of({})) is None
    assert accuracy.backward_transfer(matrix_of({})) is None


percent = st.one_of(st.none(), st.floats(0, 100))


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
    found = accuracy.backward_transfer(matrix_of(cells))
    assert found == (None if expected is None else pytest.approx(expected, abs=1e-9))


def test_a_probe_stands_with_the_task_that_was_probed() -> None:
    told: list[dict[str, object]] = [
        {"task": 1, "forward_transfer": {"top1": 0.5, "task": 2}},
        {"task": 2, "forward_transfer": {"top1": 0.25}},  # earlier records do not name the task
        {"task": 3},
    ]
    assert accuracy.transfers(told) == {1: (2, 50.0), 2: (3, 25.0)}

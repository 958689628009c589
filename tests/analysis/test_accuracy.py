from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable

import polars as pl
import pytest

from clinit.analysis.metrics.accuracy import (
    accuracy_matrix,
    accuracy_points,
    at_end,
    average_incremental_accuracy,
    forgetting,
    mean,
)
from clinit.errors import RecordError
from clinit.headtrain.record.format import RunRecord


def naive_points(record: RunRecord) -> dict[tuple[int, int], list[float | None]]:
    """The four accuracies, image by image."""
    arrived = dict(zip(record.classes["row"], record.classes["task"], strict=True))
    images: dict[tuple[int, int], list[tuple[int, int]]] = defaultdict(list)
    for task, iteration, row, correct, total, *_ in record.evaluations.iter_rows():
        outcomes = [1] * correct + [0] * (total - correct)
        images[task, iteration] += [(arrived[row], outcome) for outcome in outcomes]
    result = {}
    for (task, iteration), seen in images.items():
        groups = [
            [right for origin, right in seen if origin == 0],
            [right for origin, right in seen if origin == task],
            [right for origin, right in seen if origin < task],
            [right for origin, right in seen],
        ]
        result[task, iteration] = [100 * sum(g) / len(g) if g else None for g in groups]
    return result


@pytest.mark.parametrize("untested", [None, 0, 2])
def test_accuracies_agree_with_counting_images_one_by_one(
    make_run: Callable[..., RunRecord], untested: int | None
) -> None:
    record = make_run("least-square", untested_task=untested)
    points = accuracy_points(record.evaluations, record.classes)
    expected = naive_points(record)
    assert len(points) == len(expected) == 3 * 5
    for task, iteration, *accuracies in points.iter_rows():
        assert accuracies == pytest.approx(expected[task, iteration])


def test_classes_that_have_not_arrived_do_not_count(make_run: Callable[..., RunRecord]) -> None:
    record = make_run()
    later = record.evaluations.filter(pl.col("task") == 3).with_columns(
        pl.lit(1, pl.Int16).alias("task"), pl.lit(20, pl.Int32).alias("correct")
    )
    unseen = record.classes.filter(pl.col("task") > 1)["row"].implode()
    widened = pl.concat([record.evaluations, later.filter(pl.col("row").is_in(unseen))])
    task = pl.col("task") == 1
    whole = accuracy_points(record.evaluations, record.classes)
    assert accuracy_points(widened, record.classes).filter(task).equals(whole.filter(task))


def test_a_task_without_test_images_has_no_accuracy(make_run: Callable[..., RunRecord]) -> None:
    record = make_run(untested_task=2)
    points = accuracy_points(record.evaluations, record.classes)
    assert points.filter(pl.col("task") == 2)["acc_new"].null_count() == 5
    assert points.filter(pl.col("task") == 3)["acc_new"].null_count() == 0


def test_sums_do_not_overflow_at_the_size_of_many_images() -> None:
    classes = pl.DataFrame({"row": [0, 1], "task": [0, 1]}, schema_overrides={"task": pl.Int16})
    counts = {"correct": [2**30, 2**30, 2**30, 2**30], "total": [2**31 - 1] * 4}
    evaluations = pl.DataFrame(
        {"task": [1, 1, 1, 1], "iteration": [0, 0, 50, 50], "row": [0, 1, 0, 1], **counts},
        schema_overrides={"task": pl.Int16, "correct": pl.Int32, "total": pl.Int32},
    )
    assert accuracy_points(evaluations, classes)["acc_all"].to_list() == pytest.approx([50.0] * 2)


def test_the_matrix_holds_the_accuracy_on_each_task_at_the_end_of_each_task(
    make_run: Callable[..., RunRecord],
) -> None:
    record = make_run()
    matrix = accuracy_matrix(record.evaluations, record.classes)
    pairs = list(zip(matrix["after_task"], matrix["on_task"], strict=True))
    assert pairs == [(after, on) for after in (1, 2, 3) for on in range(after + 1)]
    last = at_end(accuracy_points(record.evaluations, record.classes))
    own = matrix.filter(pl.col("after_task") == pl.col("on_task"))["accuracy"].to_list()
    assert own == pytest.approx(last["acc_new"].to_list())


def test_forgetting_is_the_mean_drop_from_the_best_accuracy_of_earlier_tasks() -> None:
    accuracy = {(1, 1): 80.0, (2, 1): 85.0, (3, 1): 60.0, (2, 2): 70.0, (3, 2): 72.0, (3, 3): 50.0}
    base = {(1, 0): 90.0, (2, 0): 50.0, (3, 0): 10.0}
    cells = [(after, on, value) for (after, on), value in (accuracy | base).items()]
    matrix = pl.DataFrame(cells, schema=["after_task", "on_task", "accuracy"], orient="row")
    # Chaudhry et al.: the best among earlier evaluations, so learning more is negative.
    assert forgetting(matrix) == pytest.approx(((85 - 60) + (70 - 72)) / 2)
    assert forgetting(matrix.filter(pl.col("after_task") == 1)) is None


def test_average_incremental_accuracy_is_the_mean_of_final_accuracies(
    make_run: Callable[..., RunRecord],
) -> None:
    record = make_run()
    points = accuracy_points(record.evaluations, record.classes)
    ends = [naive_points(record)[task, 200][3] for task in (1, 2, 3)]
    assert average_incremental_accuracy(points) == pytest.approx(sum(map(float, ends)) / 3)  # type: ignore[arg-type]


def test_the_mean_of_nothing_is_none() -> None:
    assert mean(pl.Series([None, None], dtype=pl.Float64)) is None
    assert mean(pl.Series([1.0, None, 2.0])) == 1.5


def test_a_row_without_a_class_is_reported(make_run: Callable[..., RunRecord]) -> None:
    record = make_run()
    with pytest.raises(RecordError, match="evaluates 1 head rows that its list of classes"):
        accuracy_points(record.evaluations, record.classes.filter(pl.col("row") != 5))

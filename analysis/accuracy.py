"""Continual-learning accuracies as queries over a run record.

The record holds correct counts (of the test images of each class, at each evaluation); every
accuracy here pools test images, in percent:

    acc_pre   classes of the base data set
    acc_new   classes of the current task
    acc_old   base classes and those of earlier tasks
    acc_all   all classes seen so far

An accuracy is null where its classes have no test image. Reported values are means over
evaluation points ("average accuracy"), the point before the first step included.

Sources: H. Koh, D. Kim, J.-W. Ha, J. Choi, "Online continual learning on class incremental
blurry task configuration with anytime inference", ICLR 2022 (average accuracy);
A. Chaudhry, P. Dokania, T. Ajanthan, P. Torr, "Riemannian walk for incremental learning",
ECCV 2018 (forgetting); S.-A. Rebuffi, A. Kolesnikov, G. Sperl, C. Lampert, "iCaRL", CVPR
2017 (average incremental accuracy).
"""

from __future__ import annotations

import polars as pl

from clinit.errors import RecordError

ACCURACIES = ("acc_pre", "acc_new", "acc_old", "acc_all")


def accuracy_points(evaluations: pl.DataFrame, classes: pl.DataFrame) -> pl.DataFrame:
    """Return the four accuracies at each evaluation: task, iteration, acc_*; sorted."""
    origin, task = pl.col("origin"), pl.col("task")
    return (
        with_origin(evaluations, classes)
        .filter(origin <= task)
        .group_by("task", "iteration")
        .agg(
            acc_pre=_pooled(origin == 0),
            acc_new=_pooled(origin == task),
            acc_old=_pooled(origin < task),
            acc_all=_pooled(pl.lit(True)),
        )
        .sort("task", "iteration")
    )


def accuracy_matrix(evaluations: pl.DataFrame, classes: pl.DataFrame) -> pl.DataFrame:
    """Return the accuracy on the classes of each task at the end of each task.

    Columns: after_task, on_task (0 = base classes), accuracy; among all classes seen so far.
    """
    last = pl.col("iteration") == pl.col("iteration").max().over("task")
    return (
        with_origin(evaluations, classes)
        .filter(last & (pl.col("origin") <= pl.col("task")))
        .group_by(after_task="task", on_task="origin")
        .agg(accuracy=_pooled(pl.lit(True)))
        .sort("after_task", "on_task")
    )


def forgetting(matrix: pl.DataFrame) -> float | None:
    """Return the mean drop of earlier tasks from their best to their final accuracy.

    Over the tasks learnt before the last one, the base classes left out (the record does
    not know what they were before new classes came). None where there is no earlier task.
    """
    final_task = matrix["after_task"].max()
    if final_task is None:  # no test image
        return None
    earlier = matrix.filter((pl.col("on_task") > 0) & (pl.col("on_task") < final_task))
    final = pl.col("after_task") == final_task
    drops = earlier.group_by("on_task").agg(
        drop=pl.col("accuracy").filter(~final).max() - pl.col("accuracy").filter(final).first()
    )
    return mean(drops["drop"])


def last_accuracy(points: pl.DataFrame) -> float | None:
    """Return the accuracy on all seen classes at the end of the last task; None if unknown.

    The last task is the last one that was learnt: a run that was asked to stop early has seen
    fewer classes than its stream holds.
    """
    last: float | None = at_end(points)["acc_all"].last()  # type: ignore[assignment]
    return last


def average_incremental_accuracy(points: pl.DataFrame) -> float | None:
    """Return the mean over tasks of the accuracy on all seen classes at the task's end."""
    return mean(at_end(points)["acc_all"])


def mean_at_start(points: pl.DataFrame, name: str) -> float | None:
    """Return the mean over tasks of a value before the first step, such as `acc_new`."""
    return mean(at_start(points)[name])


def at_start(points: pl.DataFrame) -> pl.DataFrame:
    """Return the evaluation before the first step of each task."""
    return points.filter(pl.col("iteration") == 0)


def at_end(points: pl.DataFrame) -> pl.DataFrame:
    """Return the last evaluation of each task."""
    return points.filter(pl.col("iteration") == pl.col("iteration").max().over("task"))


def mean(values: pl.Series) -> float | None:
    """Return the mean of the values that are there; None where there is none."""
    average = values.cast(pl.Float64).mean()
    assert average is None or isinstance(average, float)
    return average


def with_origin(evaluations: pl.DataFrame, classes: pl.DataFrame) -> pl.DataFrame:
    """Add `origin`, the task in which each class arrived.

    Raises:
        RecordError: If a row is evaluated that is not among the classes.
    """
    origins = classes.select("row", origin="task")
    joined = evaluations.join(origins, on="row", how="left", validate="m:1")
    if joined["origin"].null_count():
        unknown = joined.filter(pl.col("origin").is_null())["row"].n_unique()
        raise RecordError(
            f"the record evaluates {unknown:,} head rows that its list of classes does not hold",
            remedy="The record is damaged: run `clinit train-head` again with another --out.",
        )
    return joined


def _pooled(chosen: pl.Expr) -> pl.Expr:
    # int64: a sum of int32 stays int32 in polars.
    correct = pl.col("correct").cast(pl.Int64).filter(chosen).sum()
    total = pl.col("total").cast(pl.Int64).filter(chosen).sum()
    return pl.when(total > 0).then(100.0 * correct / total)

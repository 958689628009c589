"""Accuracy where the task of each image is given: task-incremental learning.

A prediction is restricted to the classes of the task that the image's class came with (0 = the
base classes), as the record counts it in `correct_in_task`:

    acc_pre_alone   base images, predicted among the base classes alone
    acc_in_task     images of all classes seen, each predicted within its own task

`acc_pre` competes with the new rows of the widened head; `acc_pre_alone` is the head of the base
classes as it is now, without that competition (the 1,000-way head of ImageNet). Their difference
is what base images lose to new classes, apart from what they lose because old rows change. An
accuracy is null where its classes have no test image, and in records that do not hold the counts.

Source: G. M. van de Ven, A. S. Tolias, "Three scenarios for continual learning", 2019
(task-incremental learning).
"""

from __future__ import annotations

import polars as pl

from clinit.analysis.accuracy import with_origin

IN_TASK = ("acc_pre_alone", "acc_in_task")
COUNTS = "correct_in_task"


def points_in_task(evaluations: pl.DataFrame, classes: pl.DataFrame) -> pl.DataFrame:
    """Return both accuracies at each evaluation: task, iteration, acc_*; sorted."""
    if COUNTS not in evaluations.columns:  # a record of an earlier version
        evaluations = evaluations.with_columns(pl.lit(None, pl.Int32).alias(COUNTS))
    origin, task = pl.col("origin"), pl.col("task")
    return (
        with_origin(evaluations, classes)
        .filter(origin <= task)
        .group_by("task", "iteration")
        .agg(acc_pre_alone=_pooled(origin == 0), acc_in_task=_pooled(pl.lit(True)))
        .sort("task", "iteration")
    )


def _pooled(chosen: pl.Expr) -> pl.Expr:
    counts = pl.col(COUNTS).cast(pl.Int64).filter(chosen)
    total = pl.col("total").cast(pl.Int64).filter(chosen).sum()
    known = (total > 0) & (counts.null_count() == 0)
    return pl.when(known).then(100.0 * counts.sum() / total)

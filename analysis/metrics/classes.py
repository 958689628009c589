"""Predictions for single test images, and pairs of confused classes.

Of two classes, the class of the later task is new and the other class old. Pairs of classes of the
same task are left out, because initialisation and training treat both in the same way.
"""

from __future__ import annotations

import polars as pl

from clinit.analysis.metrics.accuracy import at_end
from clinit.errors import RecordError
from clinit.headtrain.protocol.record.format import RunRecord
from clinit.headtrain.protocol.record.info import settings_of


def confusions(
    mistakes: pl.DataFrame, classes: pl.DataFrame, top: int | None = None
) -> pl.DataFrame:
    """Return the pairs of classes confused most often after the last task, the worst first.

    Columns: true_class, predicted_class, true_task, predicted_task (0 = base), true_is_new,
    predicted_is_new, count (test images of the true class labelled as the other class), total (test
    images of the true class) and share (percent). Equal counts are sorted by share, then head row.

    Args:
        mistakes: Mistakes of a record at the ends of tasks; see `mistakes_of`.
        classes: Classes of the same record.
        top: Maximum number of pairs; None: all.
    """
    last = pl.col("task") == pl.col("task").max()
    known = classes.select("row", "name", "val_rows", origin="task")
    predicted = known.select(predicted="row", predicted_class="name", predicted_task="origin")
    found = (
        mistakes.filter(last)
        .group_by("row", "predicted")
        .agg(count=pl.len().cast(pl.Int64))
        .join(known, on="row", how="left", validate="m:1")
        .join(predicted, on="predicted", how="left", validate="m:1")
        .filter(pl.col("origin") != pl.col("predicted_task"))
        .with_columns(share=100.0 * pl.col("count") / pl.col("val_rows"))
        .sort("count", "share", "row", "predicted", descending=[True, True, False, False])
    )
    is_new = pl.col("origin") > pl.col("predicted_task")
    chosen = found.select(
        pl.col("name").alias("true_class"),
        "predicted_class",
        pl.col("origin").alias("true_task"),
        "predicted_task",
        is_new.alias("true_is_new"),
        (~is_new).alias("predicted_is_new"),
        "count",
        pl.col("val_rows").alias("total"),
        "share",
    )
    return chosen if top is None else chosen.head(top)


def predictions(record: RunRecord) -> pl.DataFrame:
    """Return the predicted class of each test image at the end of each task.

    With `mistakes = "all"`, at every evaluation. Columns: task, iteration, row (the head row of its
    class), image (its number within the class), predicted (a head row).

    Raises:
        RecordError: If the record does not contain the mistakes.
    """
    keys, numbers = ["task", "iteration", "row", "image"], pl.int_ranges("total").alias("image")
    evaluations, wrong = record.evaluations, mistakes_of(record).cast({"image": pl.Int64})
    if settings_of(record.info)["mistakes"] == "end":
        evaluations = at_end(evaluations)
    images = evaluations.select(*keys[:3], numbers).explode("image")
    known = images.drop_nulls("image").join(wrong, on=keys, how="left", maintain_order="left")
    return known.with_columns(pl.col("predicted").fill_null(pl.col("row")))


def mistakes_of(record: RunRecord, *, only_ends: bool = False) -> pl.DataFrame:
    """Return the wrongly classified test images at the evaluations that list them.

    With `only_ends`, only at the last evaluation of each task.

    Raises:
        RecordError: If the record does not contain these images.
    """
    if record.mistakes is None:
        where = record.path or record.info["id"]
        raise RecordError(
            f"the record {where} does not list the mistaken images: it was written by"
            " an earlier version",
            remedy=f"Run it again: `clinit rerun {where} --out FOLDER` makes a record with them.",
        )
    ends = record.evaluations.group_by("task").agg(end=pl.col("iteration").max())
    wrong = record.mistakes.join(ends, on="task", how="left", maintain_order="left")
    at = pl.col("iteration").fill_null(pl.col("end"))  # records of an earlier version
    is_end = (at == pl.col("end")) | (not only_ends)
    return wrong.with_columns(at).filter(is_end).drop("end")

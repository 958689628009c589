"""Single classes: which are taken for which, and which gain from a start.

Of two classes, the one that came with the later task is new and the other one old. Pairs of
classes that came together are left out of the confusions: initialisation and training treat both
alike. Gains of classes are compared at the end of the class's own task, before later tasks have
their say.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import polars as pl

from clinit.errors import RecordError
from clinit.headtrain.record.format import RunRecord


def confusions(
    mistakes: pl.DataFrame, classes: pl.DataFrame, top: int | None = None
) -> pl.DataFrame:
    """Return the pairs that are confused most often after the last task, the worst first.

    Columns: true_class, predicted_class, true_task, predicted_task (0 = base), true_is_new,
    predicted_is_new, count (test images of the true class that are labelled as the other one),
    total (its test images) and share (percent). Equal counts stand by share, then by head row.

    Args:
        mistakes: Of a record; see `mistakes_of`.
        classes: Of the same record.
        top: Most pairs that are returned; None: all.
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
        "predicted_class",
        "predicted_task",
        "count",
        "share",
        true_class="name",
        true_task="origin",
        true_is_new=is_new,
        predicted_is_new=~is_new,
        total="val_rows",
    ).select(COLUMNS)
    return chosen if top is None else chosen.head(top)


COLUMNS = (
    "true_class",
    "predicted_class",
    "true_task",
    "predicted_task",
    "true_is_new",
    "predicted_is_new",
    "count",
    "total",
    "share",
)
"""The columns of the table that `confusions` returns."""


def mistakes_of(record: RunRecord) -> pl.DataFrame:
    """Return the wrongly labelled test images at the end of each task.

    Raises:
        RecordError: If the record does not hold them.
    """
    if record.mistakes is None:
        where = record.path or record.info["id"]
        raise RecordError(
            f"the record {where} does not hold which image was labelled as what: it was written by"
            " an earlier version",
            remedy=f"Run it again: `clinit rerun {where} --out FOLDER` makes a record that has it.",
        )
    return record.mistakes


@dataclass(frozen=True, slots=True, eq=False)
class ClassGains:
    """Gains of classes; see `class_gains`."""

    table: pl.DataFrame
    """name, accuracy, reference, gain: percent and points, the greatest gain first."""

    @property
    def mean(self) -> float:
        """The mean gain, all classes alike."""
        return float(self.table["gain"].sum()) / len(self.table)

    @property
    def gaining(self) -> int:
        """How many classes gain."""
        return int((self.table["gain"] > TIE).sum())

    @property
    def losing(self) -> int:
        """How many classes lose."""
        return int((self.table["gain"] < -TIE).sum())

    @property
    def summary(self) -> str:
        """Mean and counts in words."""
        equal = len(self.table) - self.gaining - self.losing
        return f"mean {self.mean:+.1f}: {self.gaining} gain, {self.losing} lose, {equal} equal"


TIE = 1e-9
"""Gains closer to 0 are equal accuracies: means over seeds are not exact."""


def class_gains(records: Sequence[RunRecord], references: Sequence[RunRecord]) -> ClassGains:
    """Compare two starts, each with the records of the same seeds in the same order.

    Accuracies are means over the seeds at which the class has test images. Classes are told by
    name: their order differs between seeds. Base classes have no task of their own.
    """
    ours, theirs = _accuracies(records), _accuracies(references)
    table = (
        ours.join(theirs.rename({"accuracy": "reference"}), on="name", how="inner")
        .with_columns(gain=pl.col("accuracy") - pl.col("reference"))
        .sort("gain", "name", descending=[True, False])
    )
    return ClassGains(table)


def own_task_accuracies(record: RunRecord) -> pl.DataFrame:
    """Return the accuracy of each new class at the end of its own task: name, accuracy."""
    last = pl.col("iteration") == pl.col("iteration").max().over("task")
    own = record.classes.select("row", "name", origin="task")
    return (
        record.evaluations.filter(last)
        .join(own, on="row", how="inner", validate="m:1")
        .filter((pl.col("task") == pl.col("origin")) & (pl.col("total") > 0))
        .sort("row")
        .select("name", accuracy=100.0 * pl.col("correct") / pl.col("total"))
    )


def _accuracies(records: Sequence[RunRecord]) -> pl.DataFrame:
    return (
        pl.concat(map(own_task_accuracies, records))
        .group_by("name", maintain_order=True)
        .agg(pl.col("accuracy").mean())
    )

"""How much each new class gains from one start over another, in points of accuracy.

Compared at the end of the class's own task: what came of the start once the class was learnt, and
before later tasks have their say.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import polars as pl

from clinit.headtrain.record.format import RunRecord


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

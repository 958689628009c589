"""Backward transfer: what later tasks do to the accuracy on earlier ones.

With a(t, s) the accuracy on the classes of task s after task t, among all classes seen by then,
and T the last task:

    BWT = mean over s = 1 ... T - 1 of a(T, s) - a(s, s),    in percentage points

It is negative where earlier tasks are forgotten. Forgetting measures from the best accuracy of a
task, this from the one at its own end. The base classes are left out, because the record does not
hold their accuracy before new classes came, and so are tasks without a test image.

Source: D. Lopez-Paz, M. Ranzato, "Gradient episodic memory for continual learning", NeurIPS 2017.
There the task of an image is given; here it is not, so that new classes cost old ones something
by competition alone.
"""

from __future__ import annotations

import polars as pl

from clinit.analysis.accuracy import mean


def backward_transfer(matrix: pl.DataFrame) -> float | None:
    """Return the backward transfer of an accuracy matrix; None where there is no earlier task."""
    after, on = pl.col("after_task"), pl.col("on_task")
    last = matrix["after_task"].max()
    if last is None:  # no test image
        return None
    own = matrix.filter((on > 0) & (on == after) & (after < last))
    final = matrix.filter(after == last).select("on_task", final="accuracy")
    joined = own.join(final, on="on_task", how="inner")
    return mean(joined["final"] - joined["accuracy"])

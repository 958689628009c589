"""Base accuracy that ends far above its start, and why: no gain to count on.

A head that was made for all base classes is trained on the rows of a cache. Where a few base
classes are tested and most of these rows are theirs, it comes to prefer them.
"""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl

from clinit.analysis.accuracy import at_end
from clinit.analysis.accuracy_before import accuracy_before
from clinit.analysis.run_summary import RunSummary

FAR = 5.0
"""Percentage points."""


def rises(runs: Sequence[RunSummary]) -> str:
    """Return the note on runs on the same data; empty where no run ends far above its start."""
    found = [
        (run, before, after)
        for run in runs
        if (before := accuracy_before(run.record, run.points)) is not None
        and (after := _after(run)) is not None
        and after - before > FAR
    ]
    if not found:
        return ""
    starts = _range([before for _, before, _ in found])
    ends = _range([after for _, _, after in found])
    return (
        f"A_pre rises from {starts} % before task 1 to {ends} % after the last task:"
        f" {_reason(found[0][0])}"
    )


def _after(run: RunSummary) -> float | None:
    last: float | None = at_end(run.points)["acc_pre"].last()  # type: ignore[assignment]
    return last


def _reason(run: RunSummary) -> str:
    base = run.record.classes.filter(pl.col("task") == 0)
    tested = base.filter(pl.col("val_rows") > 0)
    rows, own = base["train_rows"].sum(), tested["train_rows"].sum()
    if len(tested) == len(base):
        return (
            "training fits the rows of base classes to this cache better than the head that it"
            " started from."
        )
    return (
        f"only {len(tested):,} of {len(base):,} base classes are tested, and {own:,} of {rows:,}"
        " training rows of base classes are theirs, so that training favours them. No gain to"
        " count on."
    )


def _range(values: Sequence[float]) -> str:
    low, high = f"{min(values):.1f}", f"{max(values):.1f}"
    return low if low == high else f"{low} to {high}"

"""Whether two records hold the same numbers, bit for bit."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
import polars as pl

from clinit.headtrain.record.format import RunRecord

TIMES = ("elapsed_s",)
"""Columns that say how long something took."""


def differences(one: RunRecord, other: RunRecord) -> list[str]:
    """Return a phrase for each part in which two records differ; none if all bits are the same.

    Args:
        one: With its head, and the parameters that it changed.
        other: Likewise, to be compared with it.
    """
    return [
        *_of_tables(one, other),
        *_of_arrays(_arrays(one), _arrays(other)),
    ]


def _of_tables(one: RunRecord, other: RunRecord) -> Iterator[str]:
    for name in ("classes", "steps", "evaluations", "points"):
        ours, theirs = (_without_times(getattr(record, name)) for record in (one, other))
        if ours.equals(theirs):
            continue
        if ours.shape != theirs.shape or ours.columns != theirs.columns:
            yield f"{name}: {ours.height:,} rows, not {theirs.height:,}"
            continue
        columns = [column for column in ours.columns if not ours[column].equals(theirs[column])]
        rows = sum(
            any(a != b for a, b in zip(mine, its, strict=True))
            for mine, its in zip(ours.iter_rows(), theirs.iter_rows(), strict=True)
        )
        yield f"{name}: {', '.join(columns)} in {rows:,} of {ours.height:,} rows"


def _without_times(table: pl.DataFrame) -> pl.DataFrame:
    return table.select(column for column in table.columns if column not in TIMES)


def _arrays(record: RunRecord) -> dict[str, np.ndarray]:
    found = dict(record.top or {})
    if record.head is not None:
        found |= {"head weight": record.head.weight, "head bias": record.head.bias}
    return found


def _of_arrays(one: Mapping[str, np.ndarray], other: Mapping[str, np.ndarray]) -> Iterator[str]:
    for name in sorted({*one, *other}):
        if name not in one or name not in other or one[name].shape != other[name].shape:
            yield f"{name}: of another shape, or in one of the two alone"
        elif one[name].tobytes() != other[name].tobytes():
            most = np.abs(one[name].astype(np.float64) - other[name].astype(np.float64)).max()
            yield f"{name}: by {most:.3g} at most"

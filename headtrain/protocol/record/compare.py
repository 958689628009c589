"""Compare the numbers of two records bit for bit, and list possible causes of differences."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import polars as pl

from clinit.headtrain.protocol.record.format import RunRecord
from clinit.headtrain.protocol.record.tables import LATER_COLUMNS

TIMES = ("elapsed_s",)
"""Columns of durations."""


def differences(one: RunRecord, other: RunRecord) -> list[str]:
    """Return a phrase for each part in which two records differ; none if all bits are the same.

    Args:
        one: A record, including its head and changed parameters.
        other: Another record, including its head and changed parameters.
    """
    return [
        *_of_tables(one, other),
        *_of_arrays(_arrays(one), _arrays(other)),
    ]


def _of_tables(one: RunRecord, other: RunRecord) -> Iterator[str]:
    for name in ("classes", "steps", "evaluations", "points"):
        ours, theirs = (getattr(record, name) for record in (one, other))
        if ours.height != theirs.height:
            yield f"{name}: {ours.height:,} rows, not {theirs.height:,}"
            continue
        columns = [
            column
            for column in ours.columns
            if column not in TIMES
            and not _is_older(column, ours, theirs)
            and not ours[column].equals(theirs[column])
        ]
        if columns:
            yield f"{name}: {', '.join(columns)}"


def _is_older(column: str, *tables: pl.DataFrame) -> bool:
    return column in LATER_COLUMNS.values() and any(each[column].is_null().all() for each in tables)


def _arrays(record: RunRecord) -> dict[str, np.ndarray]:
    found = dict(record.top or {})
    if record.head is not None:
        found |= {"head weight": record.head.weight, "head bias": record.head.bias}
    return found


def _of_arrays(one: Mapping[str, np.ndarray], other: Mapping[str, np.ndarray]) -> Iterator[str]:
    for name in sorted({*one, *other}):
        if name not in one or name not in other or one[name].shape != other[name].shape:
            yield f"{name}: of another shape, or in only one record"
        elif one[name].tobytes() != other[name].tobytes():
            with np.errstate(invalid="ignore"):
                most = np.abs(one[name].astype(np.float64) - other[name].astype(np.float64))
            known = most[np.isfinite(most)]
            yield f"{name}: by {known.max() if known.size else np.nan:.3g} at most"


def circumstances(one: Mapping[str, Any], other: Mapping[str, Any]) -> Iterator[str]:
    """Yield differences in device, bank, CPU and versions, which may explain different bits.

    Args:
        one: The contents of run.json; earlier versions do not record the CPU.
        other: The contents of run.json of the repetition.
    """
    for name in ("device", "bank_size"):
        if one.get(name) != other.get(name):
            yield f"{name.replace('_', ' ')}: {one.get(name)} then, {other.get(name)} now"
    for name in ("cpu", "versions"):
        before, now = one.get(name) or {}, other.get(name) or {}
        changed = [key for key in now if before and before.get(key) != now[key]]
        if changed:
            words = ", ".join(f"{key} {before.get(key)} → {now[key]}" for key in changed)
            yield f"{name}: {words}"

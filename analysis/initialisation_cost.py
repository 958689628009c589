"""Seconds that a run spends on the initialisation of new rows, and their share of the run.

The sum over tasks of `initialisation.seconds`: features, statistics, the choice of lambda, the
solve and the calibration, as they were measured; not the reading of caches. What several heads
that were trained side by side share (statistics) is counted in full for each that needs it. The
share is of `seconds` of the run. Both are None where a task has no time, as in records of early
versions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


def initialisation_seconds(tasks: Sequence[Mapping[str, Any]]) -> float | None:
    """Return the seconds of initialisation over all tasks of run.json."""
    found = [(task.get("initialisation") or {}).get("seconds") for task in tasks]
    known = [seconds for seconds in found if seconds is not None]
    return float(sum(known)) if known and len(known) == len(found) else None


def initialisation_share(tasks: Sequence[Mapping[str, Any]], run: float | None) -> float | None:
    """Return the share, 0 to 1, of initialisation in the `run` seconds of a run."""
    seconds = initialisation_seconds(tasks)
    return None if seconds is None or not run else seconds / run

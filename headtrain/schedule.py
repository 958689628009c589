"""The schedule of a task: which rows are in which batch, drawn once and shared by all heads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Int


@dataclass(frozen=True, slots=True)
class Share:
    """A range of rows, and how many of them are in each batch."""

    start: int
    stop: int
    count: int


@dataclass(frozen=True, slots=True, eq=False)
class Schedule:
    """Batches of a task, as indices into its rows."""

    batches: Int[np.ndarray, "iterations batch"]
    """In each batch the new rows come first."""
    num_new: Int[np.ndarray, " iterations"]
    """New rows in each batch."""


def draw_schedule(
    random: np.random.Generator, shares: Sequence[Share], *, first_new: int, iterations: int
) -> Schedule:
    """Draw batches that take from each range of rows its share.

    Each range is passed over in shuffled order and shuffled anew when it is exhausted: a row
    comes again only after all others of its range have come. Rows from `first_new` on are new.
    """
    batches = np.hstack([_passes(random, share, iterations) for share in shares])
    is_old = batches < first_new
    new_first = np.argsort(is_old, axis=1, kind="stable")
    return Schedule(np.take_along_axis(batches, new_first, axis=1), (~is_old).sum(axis=1))


def _passes(
    random: np.random.Generator, share: Share, iterations: int
) -> Int[np.ndarray, "iterations share"]:
    rows, total = share.stop - share.start, iterations * share.count
    if not total:
        return np.empty((iterations, share.count), dtype=np.int64)
    passes = [random.permutation(rows) for _ in range(-(-total // rows))]
    return np.concatenate(passes)[:total].reshape(iterations, share.count) + share.start

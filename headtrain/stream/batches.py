"""Which rows are in which batch of a task, drawn once and shared by all heads.

A batch of rehearsal is made of, by name of its mix:

    text    half new rows (rounded down), the rest from the buffer: the paper's text
    sgm     the first task as `text`; later 3/8 new, 1/2 base, 1/8 earlier new classes: of 256 rows
            96, 128 and 32, as in the authors' related code (SGM)

A batch is all new where the buffer is empty. `sgm` is `text` as long as the buffer lacks base
rows or rows of earlier new classes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int

from clinit.headtrain.stream.pool import TaskRows


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

    @property
    def new_share(self) -> Float[np.ndarray, " iterations"]:
        """Share of new rows in each batch."""
        share: np.ndarray = self.num_new / self.batches.shape[1]
        return share


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


def mixed(mix: str, rows: TaskRows, batch_size: int) -> Sequence[Share]:
    """Return the shares of a batch, the new rows first."""
    half = batch_size // 2
    if not rows.num_old:
        return (_new(rows, batch_size),)
    if mix == "text" or rows.num_base in (0, rows.num_old):
        return (_new(rows, half), Share(0, rows.num_old, batch_size - half))
    earlier = batch_size // 8
    return (
        _new(rows, half - earlier),
        Share(0, rows.num_base, batch_size - half),
        Share(rows.num_base, rows.num_old, earlier),
    )


def _new(rows: TaskRows, count: int) -> Share:
    return Share(rows.num_old, len(rows.labels), count)

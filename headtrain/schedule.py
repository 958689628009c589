"""The schedule of a task: which rows are in which batch, drawn once and shared by all heads."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Int


@dataclass(frozen=True, slots=True, eq=False)
class Schedule:
    """Batches of a task, as indices into its rows: buffer rows first, then the new ones."""

    batches: Int[np.ndarray, "iterations batch"]
    """The first `num_new` of each batch are new, the others old."""
    num_new: int
    """New rows a batch."""


def draw_schedule(
    random: np.random.Generator, *, old_rows: int, new_rows: int, iterations: int, batch_size: int
) -> Schedule:
    """Draw batches of batch_size // 2 new rows, the rest old; all new where nothing is old.

    Each of the two sources is passed over in shuffled order and shuffled anew when it is
    exhausted: a row comes again only after all others have come.
    """
    num_new = batch_size // 2 if old_rows else batch_size
    new = _passes(random, new_rows, (iterations, num_new)) + old_rows
    old = _passes(random, old_rows, (iterations, batch_size - num_new))
    return Schedule(batches=np.hstack([new, old]), num_new=num_new)


def _passes(
    random: np.random.Generator, rows: int, shape: tuple[int, int]
) -> Int[np.ndarray, "iterations share"]:
    total = shape[0] * shape[1]
    if not total:
        return np.empty(shape, dtype=np.int64)
    passes = [random.permutation(rows) for _ in range(-(-total // rows))]
    return np.concatenate(passes)[:total].reshape(shape)

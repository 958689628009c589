"""The rehearsal buffer: a class-balanced choice of the rows of all classes seen so far.

Each class orders its rows once, by seed, and always gives the first ones; quotas only fall
when classes are added. So the buffer of a later task is a part of what was stored before and
of the task in between: it could be kept by a learner that sees every row once.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import numpy as np
from jaxtyping import Float, Int

from clinit.headtrain.pool import Pool
from clinit.headtrain.seeds import Draw, generator


class Buffer:
    """Chooses `size` rows of the classes seen so far, equally from each class."""

    def __init__(self, pool: Pool, *, size: int, seed: int) -> None:
        self._pool = pool
        self._size = size
        self._order = cache(lambda row: _class_order(pool.rows_of(row), row, seed))

    def rows(self, seen: Sequence[int] | Int[np.ndarray, " seen"]) -> Int[np.ndarray, " chosen"]:
        """Return the pool rows in the buffer once the classes of the head rows `seen` are seen."""
        ranks, orders = zip(*(self._order(int(row)) for row in seen), strict=True)
        counts = np.array([len(order) for order in orders])
        kept = quotas(counts, self._size, np.array(ranks))
        parts = [order[:quota] for order, quota in zip(orders, kept, strict=True)]
        return np.concatenate(parts)


def quotas(
    counts: Int[np.ndarray, " classes"], size: int, ranks: Float[np.ndarray, " classes"]
) -> Int[np.ndarray, " classes"]:
    """Share `size` rows among classes that have `counts` rows.

    The water level is the largest number of rows that every class can give, a class with fewer
    giving all it has, without passing `size`. What is left, less than one row for each class
    with more to give, goes to the classes of the lowest `ranks`.
    """
    level = _water_level(counts, size)
    shares: np.ndarray = np.minimum(counts, level)
    wanting = np.flatnonzero(counts > level)
    left = min(size - int(shares.sum()), len(wanting))
    shares[wanting[np.argsort(ranks[wanting], kind="stable")[:left]]] += 1
    return shares


def _water_level(counts: Int[np.ndarray, " classes"], size: int) -> int:
    low, high = 0, int(counts.max(initial=0))
    while low < high:
        middle = (low + high + 1) // 2
        if int(np.minimum(counts, middle).sum()) <= size:
            low = middle
        else:
            high = middle - 1
    return low


def _class_order(
    rows: Int[np.ndarray, " rows"], head_row: int, seed: int
) -> tuple[float, Int[np.ndarray, " rows"]]:
    random = generator(seed, Draw.BUFFER, head_row)
    return float(random.random()), random.permutation(rows)

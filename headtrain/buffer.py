"""The rehearsal buffer: a choice of the rows of all classes seen so far.

Each class orders its rows once, by seed, and always gives the first ones; quotas only fall
when classes are added. So the buffer of a later task is a part of what was stored before and
of the task in between: it could be kept by a learner that sees every row once.
"""

from __future__ import annotations

from functools import cache

import numpy as np
from jaxtyping import Int

from clinit.headtrain.pool import Pool
from clinit.headtrain.quotas import Quotas
from clinit.headtrain.seeds import Draw, generator


class Buffer:
    """Chooses rows of the classes seen so far, as many of each as its quotas say."""

    def __init__(self, pool: Pool, quotas: Quotas, *, seed: int) -> None:
        self._pool = pool
        self._quotas = quotas
        self._order = cache(lambda row: _class_order(pool.rows_of(row), row, seed))

    def rows(self, seen: int) -> Int[np.ndarray, " chosen"]:
        """Return the pool rows in the buffer once the first `seen` head rows are seen."""
        if not seen:
            return np.empty(0, dtype=np.int64)
        ranks, orders = zip(*(self._order(row) for row in range(seen)), strict=True)
        counts = np.array([len(order) for order in orders])
        kept = self._quotas(counts, np.array(ranks))
        parts = [order[:quota] for order, quota in zip(orders, kept, strict=True)]
        return np.concatenate(parts)


def _class_order(
    rows: Int[np.ndarray, " rows"], head_row: int, seed: int
) -> tuple[float, Int[np.ndarray, " rows"]]:
    random = generator(seed, Draw.BUFFER, head_row)
    return float(random.random()), random.permutation(rows)

"""The rehearsal buffer: a choice of the rows of all classes seen so far.

How many rows of each class it holds is said by its split:

    balanced    all classes seen share one space equally
    sgm         base and later classes have a space each, shared equally within
    per class   every class has the same space, so that the buffer grows

Each class orders its rows once, by seed, and always gives the first ones; its share only falls
when classes are added, or stays as it is. So the buffer of a later task is a part of what was
stored before and of the task in between: a learner that sees every row once could keep it.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Protocol, runtime_checkable

import numpy as np
from jaxtyping import Float, Int

from clinit.headtrain.class_draws import water_level
from clinit.headtrain.stream.pool import Pool
from clinit.headtrain.stream.seeds import Draw, generator
from clinit.headtrain.study import Stream

SGM_LARGE = 192_000
"""From this size on, an `sgm` buffer gives 20 % to later classes; below, 22.5 %."""


@runtime_checkable
class Quotas(Protocol):
    """Decides how many rows of each class are kept."""

    def __call__(
        self, counts: Int[np.ndarray, " seen"], ranks: Float[np.ndarray, " seen"]
    ) -> Int[np.ndarray, " seen"]:
        """Return the rows kept of head rows 0, 1, ..., of which there are `counts`.

        Of classes that are equal, those of the lowest `ranks` get the rows that are left over.
        """
        ...


@dataclass(frozen=True, slots=True)
class Balanced:
    """One space for all classes: a full buffer evicts from its largest class."""

    size: int

    def __call__(
        self, counts: Int[np.ndarray, " seen"], ranks: Float[np.ndarray, " seen"]
    ) -> Int[np.ndarray, " seen"]:
        """Share the space equally."""
        return level(counts, self.size, ranks)


@dataclass(frozen=True, slots=True)
class Sgm:
    """A space for base classes and one for later ones, as in the authors' related work.

    24K are 18,600 + 5,400 rows (77.5 % + 22.5 %), 192K are 153,600 + 38,400 (80 % + 20 %). Other
    sizes: 22.5 % for later classes below 192,000 rows, 20 % above. What one part cannot fill
    stays empty.

    Source: M. Y. Harun, C. Kanan, "Overcoming the stability gap in continual learning", TMLR 2024.
    """

    size: int
    num_base: int

    @property
    def later_size(self) -> int:
        """Rows kept for classes that are not of the base."""
        return round(self.size * (0.2 if self.size >= SGM_LARGE else 0.225))

    def __call__(
        self, counts: Int[np.ndarray, " seen"], ranks: Float[np.ndarray, " seen"]
    ) -> Int[np.ndarray, " seen"]:
        """Share each of the two spaces equally."""
        base, later = slice(self.num_base), slice(self.num_base, None)
        return np.concatenate(
            [
                level(counts[base], self.size - self.later_size, ranks[base]),
                level(counts[later], self.later_size, ranks[later]),
            ]
        )


@dataclass(frozen=True, slots=True)
class PerClass:
    """The same space for every class, however many there are."""

    size: int

    def __call__(
        self, counts: Int[np.ndarray, " seen"], ranks: Float[np.ndarray, " seen"]
    ) -> Int[np.ndarray, " seen"]:
        """Keep `size` rows of each class, or all that there are."""
        kept: np.ndarray = np.minimum(counts, self.size)
        return kept


def level(
    counts: Int[np.ndarray, " classes"], size: int, ranks: Float[np.ndarray, " classes"]
) -> Int[np.ndarray, " classes"]:
    """Share `size` rows among classes that have `counts` rows.

    Each class gives as many rows as the water level allows. What is left, less than one row for
    each class with more to give, goes to the classes of the lowest `ranks`.
    """
    water = water_level(counts, size)
    shares: np.ndarray = np.minimum(counts, water)
    wanting = np.flatnonzero(counts > water)
    left = min(size - int(shares.sum()), len(wanting))
    shares[wanting[np.argsort(ranks[wanting], kind="stable")[:left]]] += 1
    return shares


def quotas_of(stream: Stream, num_base: int) -> Quotas:
    """Return how many rows of each class the buffer of a stream holds, after `num_base` classes."""
    if stream.buffer_per_class is not None:
        return PerClass(stream.buffer_per_class)
    size = stream.buffer or 0
    return Sgm(size, num_base) if stream.buffer_split == "sgm" else Balanced(size)


class Buffer:
    """Chooses rows of the classes seen so far, as many of each as its quotas say."""

    def __init__(self, pool: Pool, quotas: Quotas, *, seed: int) -> None:
        self._pool = pool
        self._quotas = quotas
        self._ordered = cache(lambda row: _class_order(pool.rows_of(row), row, seed))

    def order(self, head_row: int) -> Int[np.ndarray, " rows"]:
        """Return all pool rows of a class in the order in which the buffer takes them."""
        return self._ordered(head_row)[1]

    def rows(self, seen: int) -> Int[np.ndarray, " chosen"]:
        """Return the pool rows in the buffer once the first `seen` head rows are seen."""
        if not seen:
            return np.empty(0, dtype=np.int64)
        ranks, orders = zip(*(self._ordered(row) for row in range(seen)), strict=True)
        counts = np.array([len(order) for order in orders])
        kept = self._quotas(counts, np.array(ranks))
        parts = [order[:quota] for order, quota in zip(orders, kept, strict=True)]
        return np.concatenate(parts)


def _class_order(
    rows: Int[np.ndarray, " rows"], head_row: int, seed: int
) -> tuple[float, Int[np.ndarray, " rows"]]:
    random = generator(seed, Draw.BUFFER, head_row)
    return float(random.random()), random.permutation(rows)

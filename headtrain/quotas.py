"""How many rows of each class a buffer holds, by name of its split.

    balanced    all classes seen share one space equally
    sgm         base and later classes have a space each, shared equally within
    per class   every class has the same space, so that the buffer grows

Shares of a class only fall when classes are added (or stay as they are): what a buffer needs
later, it has stored before.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np
from jaxtyping import Float, Int

BUFFER_SPLITS = ("balanced", "sgm")
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

    The water level is the largest number of rows that every class can give, a class with fewer
    giving all it has, without passing `size`. What is left, less than one row for each class
    with more to give, goes to the classes of the lowest `ranks`.
    """
    water = _water_level(counts, size)
    shares: np.ndarray = np.minimum(counts, water)
    wanting = np.flatnonzero(counts > water)
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

"""Counts, sums and Gram matrix of rows as they come; classes are added as they arrive.

Unlike `ClassStatistics`, whose weights are known before the first row, every row weighs one: of a
stream nobody knows the counts beforehand.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Int

from clinit.headtrain.array import beside, namespace
from clinit.headtrain.closed.interface import Progress, silent
from clinit.headtrain.feature_rows import FeatureRows, take
from clinit.headtrain.least_squares.moments import MomentSums

Map = Callable[[Any], Any]
"""Makes of a block of rows what is summed."""
_DIAGONAL_BLOCK = 512


class ClassMoments:
    """n_c, S_c = sum of h over class c, and G = sum of h h^T over all rows, in float64."""

    def __init__(self, zeros: Float[Any, " dim"]) -> None:
        """Begin with no class and no row.

        Args:
            zeros: A vector of zeros, in the library and on the device of the rows.
        """
        self._sums = MomentSums.zeros(np.zeros(0), zeros)

    @property
    def counts(self) -> Int[np.ndarray, " classes"]:
        """Rows of each class."""
        return self._sums.counts

    @property
    def present(self) -> Bool[np.ndarray, " classes"]:
        """Classes that have rows."""
        return self.counts > 0

    @property
    def sums(self) -> Float[Any, "classes dim"]:
        """Sum of the rows of each class."""
        return self._sums.sums

    @property
    def lower(self) -> Float[Any, "dim dim"]:
        """The Gram matrix; on the CPU its lower half alone."""
        return self._sums.lower

    @property
    def means(self) -> Float[Any, "classes dim"]:
        """Mean of each class; zero for a class without rows."""
        rows = beside(self.sums, np.maximum(self.counts, 1).astype(np.float64))
        return self.sums / rows[:, None]

    @property
    def within_covariance(self) -> Float[Any, "dim dim"]:
        """Mean over all rows of (h - mu_c)(h - mu_c)^T."""
        counts = beside(self.sums, self.counts.astype(np.float64))
        scatter = self._sums.symmetric_gram()
        scatter -= (self.means * counts[:, None]).T @ self.means
        scatter /= max(1, int(self.counts.sum()))
        return scatter

    def grow(self, num_classes: int) -> None:
        """Make place for classes that arrive."""
        more = num_classes - len(self.counts)
        xp = namespace(self.sums)
        place = beside(self.sums, np.zeros((more, self.sums.shape[1])))
        self._sums.counts = np.concatenate([self.counts, np.zeros(more, dtype=np.int64)])
        self._sums.weights = np.ones(num_classes)
        self._sums.sums = xp.concat([self.sums, place])

    def add(
        self,
        features: FeatureRows,
        labels: Int[np.ndarray, " rows"],
        mapped: Map,
        *,
        block_rows: int,
        progress: Progress = silent,
    ) -> None:
        """Add rows, mapped block by block."""
        for start in range(0, len(labels), block_rows):
            block = slice(start, min(start + block_rows, len(labels)))
            self._sums.add(mapped(take(features, block)), labels[block])
            progress("summing up rows", block.stop, len(labels))

    def merge(self, other: ClassMoments) -> None:
        """Add the sums of other rows of the same classes, in place."""
        self._sums.counts += other.counts
        self._sums.sums += other.sums
        self._sums.lower += other.lower


def plus_diagonal(matrix: Float[Any, "dim dim"], value: float) -> Float[Any, "dim dim"]:
    """Return matrix + value I: one copy of a matrix that may be of a gigabyte, and not three."""
    system = matrix + 0.0
    for start in range(0, system.shape[0], _DIAGONAL_BLOCK):
        part = slice(start, min(start + _DIAGONAL_BLOCK, system.shape[0]))
        system[part, part] += beside(system, value * np.eye(part.stop - part.start))
    return system

"""A choice of rows of features that is read where it is asked for, instead of being copied."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float, Int


@dataclass(frozen=True, slots=True, eq=False)
class StoredRows:
    """A choice of rows of a disk or of an array, in any order; it holds their numbers alone.

    `rows[chosen]` reads rows, by a slice or by their numbers, into an array of their own.
    """

    read: Callable[[Int[np.ndarray, " chosen"]], Float[np.ndarray, "chosen dim"]]
    """Reads rows by their numbers in what is stored."""
    numbers: Int[np.ndarray, " rows"]
    """Those of the rows, in their order."""
    dim: int
    dtype: np.dtype[Any]

    @property
    def shape(self) -> tuple[int, int]:
        """Number of rows and width."""
        return len(self.numbers), self.dim

    @property
    def nbytes(self) -> int:
        """Bytes that an array of all rows would take."""
        return len(self.numbers) * self.dim * self.dtype.itemsize

    def __len__(self) -> int:
        return len(self.numbers)

    def __getitem__(self, chosen: slice | Int[np.ndarray, " chosen"]) -> Float[np.ndarray, "_ dim"]:
        return self.read(self.numbers[chosen])

    def select(self, chosen: slice | Int[np.ndarray, " chosen"]) -> StoredRows:
        """Choose some of the rows, without reading them."""
        return StoredRows(self.read, self.numbers[chosen], self.dim, self.dtype)


def select_rows(features: Float[Any, "rows dim"], chosen: Int[np.ndarray, " chosen"]) -> StoredRows:
    """Choose rows of an array, or of `StoredRows`, without copying or reading them."""
    if isinstance(features, StoredRows):
        return features.select(chosen)
    return StoredRows(features.__getitem__, chosen, features.shape[1], features.dtype)

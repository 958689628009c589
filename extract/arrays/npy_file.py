"""A `.npy` file: one array without a name."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from clinit.errors import CacheError
from clinit.extract.arrays.array_file import (
    ONE_PER_ROW,
    Labels,
    StoredFeatures,
    Take,
    widened,
)
from clinit.extract.npy import NpyHeader, open_npy, read_npy_header


@dataclass(frozen=True, slots=True)
class NpyFile:
    """A `.npy` file."""

    path: Path

    def names(self) -> None:
        """Return None: the array has no name."""

    def features(self, name: str) -> StoredFeatures:
        """Return the array; its numbers stay on the disk until they are used."""
        header = read_npy_header(self.path)
        return StoredFeatures(str(self.path), header.shape, header.dtype.name, self._open)

    @contextmanager
    def _open(self, folder: Path) -> Iterator[Take]:
        features = open_npy(self.path, mmap=True)
        yield lambda rows: widened(features[rows])

    def labels(self, name: str) -> Labels:
        """Return the array: texts as a list."""
        check_labels(read_npy_header(self.path), str(self.path))
        return labels_of(open_npy(self.path, mmap=False), str(self.path))

    def class_names(self) -> None:
        """Return None: there is nothing but the array."""


def check_labels(header: NpyHeader, origin: str) -> None:
    """Check that an array holds integers or texts, one per row, before it is read.

    Raises:
        CacheError: If it does not.
    """
    if len(header.shape) != 1 or header.dtype.kind not in "iuU":
        raise CacheError(
            f"{origin} holds {header.dtype} of shape {header.shape}, expected integers or text"
            " (rows,)",
            remedy=ONE_PER_ROW,
        )


def labels_of(array: np.ndarray, origin: str) -> Labels:
    """Return an array of labels, texts as a list.

    Raises:
        CacheError: If texts hold numbers that are no characters.
    """
    if array.dtype.kind != "U":
        return array
    codes = np.ascontiguousarray(array).view(f"{array.dtype.byteorder}u4")
    if codes.max(initial=0) > sys.maxunicode:
        raise CacheError(
            f"{origin} holds what is no class name: the character {codes.max():#x}",
            remedy="Save texts.",
        )
    return list(map(str, array.tolist()))

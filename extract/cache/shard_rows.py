"""Features of a cache that stay in its shards: rows are read by their numbers.

Each shard is verified once, when the features are opened: read as a whole and compared with its
digest. From then on the bytes of the rows that are asked for are read at the place in the file
where they lie, in ascending order, and the file must still be the one that was verified.

The files are read, not mapped into memory: where a disk or a network fails, a mapped file kills
the process without a word.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from io import RawIOBase
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from clinit.errors import CacheError, unreadable
from clinit.extract.cache.features import FeatureSet, StoredRows
from clinit.extract.cache.plan import WRITE_AGAIN, Plan, shard_name
from clinit.extract.cache.read import CacheSplit
from clinit.extract.cache.shard import file_size, fill, read_shard

GAP_BYTES = 2**15
"""Bytes between two rows up to which they are read at once: about what a call costs."""
SPAN_BYTES = 2**24
"""Most bytes that are read at once."""


@dataclass(frozen=True, slots=True)
class _File:
    """One verified shard."""

    plan: Plan
    path: Path
    index: int
    place: int | None
    """Byte at which the features begin; None where they are not in one piece."""
    dtype: str
    valid: Int[np.ndarray, " rows"] | None
    """The rows that hold features; None where all of them do."""
    mark: tuple[int, ...]
    """Size, time of change and number of the file."""

    def read(self, rows: Int[np.ndarray, " chosen"]) -> Float[np.ndarray, "chosen dim"]:
        """Read rows, ascending.

        Raises:
            CacheError: If the file is missing or has changed.
            StorageError: If it cannot be read.
        """
        stored = rows if self.valid is None else self.valid[rows]
        if self.place is None:
            whole: np.ndarray = read_shard(self.path, self.plan, self.index).features[stored]
            return whole
        try:
            with self.path.open("rb", buffering=0) as file:
                if _mark(os.fstat(file.fileno())) == self.mark:
                    found = self._read(file, stored, self.place)
                    if found is not None:
                        return found
        except FileNotFoundError as error:
            raise CacheError(f"{self.path} is missing", remedy=WRITE_AGAIN) from error
        except OSError as error:
            raise unreadable(self.path, error) from error
        raise CacheError(
            f"{self.path} has changed since this command has verified it",
            remedy="Let nothing write to the cache, then run the same command again.",
        )

    def _read(
        self, file: RawIOBase, stored: Int[np.ndarray, " chosen"], place: int
    ) -> Float[np.ndarray, "chosen dim"] | None:
        """Read rows from the open file; None if it ends before."""
        dim, row_bytes = self.plan.dim, self.plan.dim * np.dtype(self.dtype).itemsize
        found = np.empty((len(stored), dim), self.dtype)
        for first, last in _spans(stored, row_bytes):
            rows = stored[first:last]
            start, stop = int(rows[0]), int(rows[-1]) + 1
            file.seek(place + start * row_bytes)
            is_run = np.array_equal(rows, np.arange(start, stop))
            span = found[first:last] if is_run else np.empty((stop - start, dim), self.dtype)
            raw = span.reshape(-1).view(np.uint8).data
            if fill(file, raw) < len(raw):
                return None
            if not is_run:
                found[first:last] = span[rows - start]
        return found


@dataclass(frozen=True, slots=True, eq=False)
class _Files:
    """The shards of a split, one behind the other."""

    files: tuple[_File, ...]
    ends: tuple[int, ...]
    """Number of rows up to the end of each."""
    dim: int
    dtype: np.dtype[Any]

    def take(self, rows: Int[np.ndarray, " chosen"]) -> Float[np.ndarray, "chosen dim"]:
        """Read rows into an array, in their order."""
        out = np.empty((len(rows), self.dim), self.dtype)
        order = np.argsort(rows, kind="stable")
        ascending = rows[order]
        bounds = np.searchsorted(ascending, (0, *self.ends))
        for index, (first, last) in enumerate(pairwise(bounds.tolist())):
            if first < last:
                start = self.ends[index - 1] if index else 0
                out[order[first:last]] = self.files[index].read(ascending[first:last] - start)
        return out


def stored_features(split: CacheSplit) -> FeatureSet:
    """Open the features of all valid rows of a split, which stay on disk, verified.

    Raises:
        CacheError: If a shard is missing, damaged or belongs to another plan.
        StorageError: If one cannot be read.
    """
    files = tuple(_verified(split, index) for index in range(split.plan.num_shards))
    spans = map(split.plan.rows, range(len(files)))
    ends = tuple(accumulate(int(split.valid[rows.start : rows.stop].sum()) for rows in spans))
    shards = _Files(files, ends, split.dim, np.dtype(split.dtype))
    rows = StoredRows(shards.take, np.arange(split.num_valid), shards.dim, shards.dtype)
    return FeatureSet(rows, split.labels[split.valid], split.class_names, split.groups)


def largest_shard(split: CacheSplit) -> int:
    """Return the size of the largest shard in bytes.

    Raises:
        CacheError: If a shard is missing.
    """
    return max(file_size(split.path / shard_name(n)) for n in range(split.plan.num_shards))


def _verified(split: CacheSplit, index: int) -> _File:
    path = (split.path / shard_name(index)).absolute()  # whoever reads it may work elsewhere
    try:
        before = _mark(path.stat())
    except OSError:
        before = ()  # reading it says what is wrong
    shard = split.shard(index)
    valid = None if shard.valid.all() else np.flatnonzero(shard.valid)
    return _File(split.plan, path, index, shard.place, str(shard.features.dtype), valid, before)


def _mark(status: os.stat_result) -> tuple[int, ...]:
    return status.st_size, status.st_mtime_ns, status.st_ino


def _spans(stored: Int[np.ndarray, " rows"], row_bytes: int) -> Iterator[tuple[int, int]]:
    """Yield ranges of ascending rows that are worth one call."""
    piece = stored // max(1, SPAN_BYTES // row_bytes)
    starts = np.flatnonzero((np.diff(stored) * row_bytes > GAP_BYTES) | (np.diff(piece) > 0)) + 1
    yield from pairwise([0, *starts.tolist(), len(stored)])

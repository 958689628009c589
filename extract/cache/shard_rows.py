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
from clinit.extract.cache.shard import file_size, read_shard

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
                if _mark(os.fstat(file.fileno())) != self.mark:
                    raise self._changed()
                return self._read(file, stored)
        except FileNotFoundError as error:
            raise CacheError(f"{self.path} is missing", remedy=WRITE_AGAIN) from error
        except OSError as error:
            raise unreadable(self.path, error) from error

    def _read(
        self, file: RawIOBase, stored: Int[np.ndarray, " chosen"]
    ) -> Float[np.ndarray, "chosen dim"]:
        assert self.place is not None
        dim, row_bytes = self.plan.dim, self.plan.dim * np.dtype(self.dtype).itemsize
        found = np.empty((len(stored), dim), self.dtype)
        raw = found.reshape(-1).view(np.uint8).data
        for first, last, is_run in _spans(stored, row_bytes):
            start, stop = int(stored[first]), int(stored[last - 1]) + 1
            file.seek(self.place + start * row_bytes)
            if is_run:
                whole = _fill(file, raw[first * row_bytes : last * row_bytes])
            else:
                span = np.empty((stop - start, dim), self.dtype)
                whole = _fill(file, span.reshape(-1).view(np.uint8).data)
                found[first:last] = span[stored[first:last] - start]
            if not whole:
                raise self._changed()
        return found

    def _changed(self) -> CacheError:
        return CacheError(
            f"{self.path} has changed since this command has verified it",
            remedy="Let nothing write to the cache, then run the same command again.",
        )


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
    ends = tuple(accumulate(_num_valid(split, index) for index in range(len(files))))
    shards = _Files(files, ends, split.dim, np.dtype(split.dtype))
    numbers = np.arange(split.num_valid)
    rows = StoredRows(shards.take, numbers, shards.dim, shards.dtype)
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


def _num_valid(split: CacheSplit, index: int) -> int:
    rows = split.plan.rows(index)
    return int(split.valid[rows.start : rows.stop].sum())


def _mark(status: os.stat_result) -> tuple[int, ...]:
    return status.st_size, status.st_mtime_ns, status.st_ino


def _spans(stored: Int[np.ndarray, " rows"], row_bytes: int) -> Iterator[tuple[int, int, bool]]:
    """Yield ranges of ascending rows that are worth one call, and whether no row is between."""
    steps = np.diff(stored)
    piece = stored // max(1, SPAN_BYTES // row_bytes)
    starts = np.flatnonzero((steps * row_bytes > GAP_BYTES) | (np.diff(piece) > 0)) + 1
    breaks = np.concatenate([[0], np.cumsum(steps != 1)]).tolist()
    for first, last in pairwise([0, *starts.tolist(), len(stored)]):
        yield first, last, breaks[last - 1] == breaks[first]


def _fill(file: RawIOBase, buffer: memoryview) -> bool:
    """Read until the buffer is full; return whether the file has as many bytes."""
    filled = 0
    while filled < len(buffer):
        count = file.readinto(buffer[filled:])
        if not count:
            return False
        filled += count
    return True

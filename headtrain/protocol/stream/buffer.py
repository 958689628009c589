"""All rows of an experiment under one index, and the rehearsal buffer, a choice of these rows.

All classes seen share its space equally.

The rows of a class are ordered once, by the seed, and the buffer always contains the first of them.
The share of a class never grows when classes are added. Every row in the buffer of a task therefore
comes from the previous buffer or from the previous task, so that a learner that sees every row only
once could maintain this buffer.

Place of features while a bank is trained: on its device, in host memory, or on disk.

A CUDA device reads rows fastest from its own memory. Features that would take more than a quarter
of its free memory stay in host memory, and the CPU gathers and copies their batches, because the
bank, its gradients and its moments need the rest.

Host memory contains the features of caches, and copies of the rows that a task reads and is tested
on. A row is in at most one copy: the rows of a start are freed before rows to train on are copied,
and the rows of a task before the next task. All features and copies together take at most twice the
size of the features (measured: 2.1 times, with numbers and labels). If they do not fit, the largest
splits stay on disk. Loaded splits then take at most half of the limit, and a copy at most a sixth;
there are at most three copies: rows of a task, its held-out rows, test rows. Rows that would take
more are read on demand.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Int

from clinit.extract.cache.features import StoredRows
from clinit.extract.cache.read import CacheSplit
from clinit.headtrain.heads.groups import PerClass, order_by_class, repeating, water_level
from clinit.headtrain.heads.seeds import Draw, generator
from clinit.machine import free_memory
from clinit.words import size_text

DEVICE_SHARE = 0.25
"""Share of the free memory of a CUDA device that the test rows or a task's rows may take."""

LOADED_SHARE = 1 / 2
"""Share of host memory that the features of caches may take."""
COPIED_SHARE = 1 / 6
"""Share of host memory that a copy of rows may take if features are on disk."""

STEPS_AT_ONCE = 25
"""Updates whose rows are gathered together if they are not on the device."""


def is_resident(size_bytes: int, device: torch.device) -> bool:
    """Return whether features of this size are kept on `device`."""
    return device.type != "cuda" or size_bytes <= DEVICE_SHARE * free_memory(device)


def feature_bytes(split: CacheSplit) -> int:
    """Return the bytes that the features of a split take in memory."""
    return split.num_valid * split.dim * np.dtype(split.dtype).itemsize


def left_on_disk(splits: Sequence[CacheSplit], memory: int) -> set[CacheSplit]:
    """Return the splits that do not fit into memory, once all smaller splits are loaded."""
    ascending = sorted(splits, key=feature_bytes)
    ends = itertools.accumulate(map(feature_bytes, ascending))
    most = int(LOADED_SHARE * memory)
    return {split for split, end in zip(ascending, ends, strict=True) if end > most}


def disk_note(split: CacheSplit, memory: int) -> str:
    """Return the note that a split stays on disk."""
    return (
        f"{split.path} stays on disk, which is slower: its {size_text(feature_bytes(split))} of"
        f" features, copies and other features could take more than {size_text(memory)} of memory"
    )


TAKEN_AT_ONCE = 8192
"""Rows that are copied at a time: 6 MB if a row has 384 numbers in float16."""


class Pool:
    """Rows of several feature arrays under one index, without copying them.

    A label is the number of a head row, or -1 if the class is not part of the experiment.
    """

    def __init__(
        self,
        *parts: tuple[Float[Any, "_ dim"], Int[np.ndarray, " _"]],
        room: int | None = None,
        groups: Callable[[], Int[np.ndarray, " rows"]] | None = None,
    ) -> None:
        """Join features with their labels.

        Args:
            parts: Arrays or `StoredRows`.
            room: Maximum bytes of rows that are copied into memory at once; None: no limit.
            groups: Returns the group of each row, as `find_groups`; default: no row repeats
                another.
        """
        self._find_groups = groups
        self.room = room
        self._dtype = np.result_type(*(features.dtype for features, _ in parts))
        self._features = [features for features, _ in parts]
        self._ends = np.cumsum([len(features) for features in self._features])
        self.labels: Int[np.ndarray, " rows"] = np.concatenate([labels for _, labels in parts])
        self._order = order_by_class(self.labels)
        self._sorted = self.labels[self._order]

    def rows_between(self, start: int, stop: int) -> Int[np.ndarray, " rows"]:
        """Return the rows of the classes `start` to `stop` - 1, each class in stored order."""
        first, last = np.searchsorted(self._sorted, [start, stop])
        return self._order[first:last]

    @cached_property
    def groups(self) -> Int[np.ndarray, " rows"]:
        """The group of each row; rows of a group repeat each other."""
        return np.arange(len(self.labels)) if self._find_groups is None else self._find_groups()

    @cached_property
    def _repeating(self) -> Int[np.ndarray, " rows"] | None:
        return repeating(self.groups)

    def groups_of(self, rows: Int[np.ndarray, " rows"]) -> Int[np.ndarray, " rows"] | None:
        """Return the groups of `rows`; None if no row repeats another."""
        return None if self._repeating is None else repeating(self._repeating[rows])

    def counts(self, num_classes: int) -> PerClass:
        """Return the number of rows of each class."""
        return np.bincount(self.labels[self.labels >= 0], minlength=num_classes)

    @property
    def dim(self) -> int:
        """Width of the features."""
        return int(self._features[0].shape[1])

    def features(self, rows: Int[np.ndarray, " rows"]) -> Float[Any, "rows dim"]:
        """Return the features of `rows`: copied, or read on demand if they exceed `room`."""
        size = len(rows) * self.dim * self._dtype.itemsize
        return self.take(rows) if self.room is None or size <= self.room else self.stored(rows)

    def stored(self, rows: Int[np.ndarray, " rows"]) -> StoredRows:
        """Return the features of `rows`, read on demand."""
        return StoredRows(self.take, rows, self.dim, self._dtype)

    def take(self, rows: Int[np.ndarray, " rows"]) -> Float[np.ndarray, "rows dim"]:
        """Copy the features of `rows`, in this order and in their stored dtype."""
        taken = np.empty((len(rows), self.dim), dtype=self._dtype)
        part = np.searchsorted(self._ends, rows, side="right")
        for index, features in enumerate(self._features):
            here = np.flatnonzero(part == index)
            first = self._ends[index] - len(features)
            # In blocks, because all rows at once would be a second copy.
            for start in range(0, len(here), TAKEN_AT_ONCE):
                block = here[start : start + TAKEN_AT_ONCE]
                taken[block] = features[rows[block] - first]
        return taken


LOSS_SAMPLE_ROWS = 2048
"""Maximum number of rows on which the new-task loss is measured: a plain sample, not
class-balanced."""


@dataclass(frozen=True, slots=True, eq=False)
class TaskRows:
    """Rows of the base classes, of earlier new classes and of the task's classes, in this order."""

    number: int
    """Number of the task."""
    rows: Int[np.ndarray, " rows"]
    """Rows of the pool of training data; -1 for a row that is drawn from statistics."""
    labels: Int[np.ndarray, " rows"]
    """Class of each row, as the number of a head row."""
    num_base: int
    """Number of rows of base classes."""
    num_old: int
    """Number of rows of all earlier classes, including the base."""

    @property
    def num_new(self) -> int:
        """Number of rows of the new classes."""
        return len(self.labels) - self.num_old

    @property
    def stored_old(self) -> Int[np.ndarray, " stored"]:
        """Labels of the old rows that are stored."""
        return self.labels[: self.num_old][self.rows[: self.num_old] >= 0]

    def part(self, kept: Bool[np.ndarray, " rows"]) -> TaskRows:
        """Return the rows that `kept` marks."""
        num_base, num_old = (int(kept[:stop].sum()) for stop in (self.num_base, self.num_old))
        return TaskRows(self.number, self.rows[kept], self.labels[kept], num_base, num_old)

    def loss_sample(self, seed: int) -> Int[np.ndarray, " sample"]:
        """Choose the new rows on which the new-task loss is measured, sorted."""
        random = generator(seed, Draw.LOSS_SAMPLE, self.number)
        return np.sort(random.permutation(self.num_new)[:LOSS_SAMPLE_ROWS]) + self.num_old


def level(counts: PerClass, size: int, ranks: Float[np.ndarray, " classes"]) -> PerClass:
    """Share `size` rows among classes that have `counts` rows.

    Each class keeps rows up to the water level. If classes have more rows than this, fewer rows
    remain than there are such classes; the ones with the lowest `ranks` keep one row more.
    """
    water = water_level(counts, size)
    shares: np.ndarray = np.minimum(counts, water)
    wanting = np.flatnonzero(counts > water)
    left = min(size - int(shares.sum()), len(wanting))
    shares[wanting[np.argsort(ranks[wanting], kind="stable")[:left]]] += 1
    return shares


MOST_DRAWN, MOST_PRODUCTS = 60_000, 2**38
"""Maximum number of drawn rows, and of the products that their second moment takes."""


def drawn_per_class(classes: int, dim: int) -> int:
    """Return how many rows to draw from statistics if none is stored.

    Enough for the covariance, and a few of each class.
    """
    wanted = max(8 * dim, 8 * classes)
    return max(2, min(wanted, MOST_DRAWN, MOST_PRODUCTS // dim**2) // max(1, classes))


class Buffer:
    """Chooses `size` rows of the classes seen so far, which share this space equally."""

    def __init__(self, pool: Pool, size: int, *, seed: int) -> None:
        self._size = size

        @cache
        def ordered(row: int) -> tuple[float, Int[np.ndarray, " rows"]]:
            random = generator(seed, Draw.BUFFER, row)
            return float(random.random()), random.permutation(pool.rows_between(row, row + 1))

        self._ordered = ordered

    def rows(self, seen: int) -> Int[np.ndarray, " chosen"]:
        """Return the pool rows in the buffer once the first `seen` head rows are seen."""
        if not seen:
            return np.empty(0, dtype=np.int64)
        ranks, orders = zip(*(self._ordered(row) for row in range(seen)), strict=True)
        kept = level(np.array([*map(len, orders)]), self._size, np.array(ranks))
        parts = [order[:quota] for order, quota in zip(orders, kept, strict=True)]
        return np.concatenate(parts)

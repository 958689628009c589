"""Which rows of earlier classes a task may look at, and how batches mix them with new ones.

rehearsal, derpp          the rows of a buffer
naive, ewc                none
closed forms              none: they keep statistics
joint, solved heads       all rows of all classes seen so far
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np
from jaxtyping import Int

from clinit.headtrain.stream.batches import Share, mixed
from clinit.headtrain.stream.buffer import Buffer
from clinit.headtrain.stream.pool import Pool, TaskRows
from clinit.headtrain.stream.tasks import Task
from clinit.headtrain.study import CLOSED_METHODS, SOLVED_METHODS


@runtime_checkable
class OldRows(Protocol):
    """A choice of rows of earlier classes."""

    def old_rows(self, train: Pool, buffer: Buffer, task: Task) -> Int[np.ndarray, " old"]:
        """Return the pool rows of earlier classes for training and statistics, base first."""
        ...

    def shares(self, rows: TaskRows, batch_size: int) -> Sequence[Share]:
        """Return what each batch is made of; the counts add up to `batch_size`."""
        ...


@dataclass(frozen=True, slots=True)
class BufferedRows:
    """Rows of a buffer of limited size, mixed with the new ones."""

    mix: str = "text"

    def old_rows(self, train: Pool, buffer: Buffer, task: Task) -> Int[np.ndarray, " old"]:
        """Return the rows in the buffer once the earlier classes are seen."""
        return buffer.rows(task.start)

    def shares(self, rows: TaskRows, batch_size: int) -> Sequence[Share]:
        """Mix new and old rows as `mix` says."""
        return mixed(self.mix, rows, batch_size)


@dataclass(frozen=True, slots=True)
class AllOldRows:
    """All rows of all earlier classes: training on everything, the upper bound."""

    def old_rows(self, train: Pool, buffer: Buffer, task: Task) -> Int[np.ndarray, " old"]:
        """Return all rows of the earlier classes."""
        return train.rows_between(0, task.start)

    def shares(self, rows: TaskRows, batch_size: int) -> Sequence[Share]:
        """Draw each batch from all rows: how many of them are new is left to chance."""
        return (Share(0, len(rows.labels), batch_size),)


@dataclass(frozen=True, slots=True)
class NoOldRows:
    """No old row: naive fine-tuning, the lower bound, and methods that keep no rows."""

    def old_rows(self, train: Pool, buffer: Buffer, task: Task) -> Int[np.ndarray, " old"]:
        """Return no row."""
        return np.empty(0, dtype=np.int64)

    def shares(self, rows: TaskRows, batch_size: int) -> Sequence[Share]:
        """Fill each batch with new rows."""
        return (Share(rows.num_old, len(rows.labels), batch_size),)


def old_rows_of(method: str, mix: str = "text") -> OldRows:
    """Return the choice that `method` makes; `mix` is that of batches with rows of a buffer.

    Raises:
        ValueError: If there is no such method.
    """
    match method:
        case "rehearsal" | "derpp":
            return BufferedRows(mix)
        case "naive" | "ewc":
            return NoOldRows()
        case "joint":
            return AllOldRows()
    if method in CLOSED_METHODS:
        return NoOldRows()
    if method in SOLVED_METHODS:
        return AllOldRows()
    raise ValueError(f"there is no method {method!r}")

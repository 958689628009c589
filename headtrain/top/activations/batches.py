"""The rows of a task in front of the first plastic block, batch by batch."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from clinit.headtrain.stream.buffer import Pool
from clinit.headtrain.top.activations.rows import PoolActivations
from clinit.headtrain.top.transfer import sent


@dataclass(frozen=True, slots=True, eq=False)
class Batch:
    """Rows in front of the first plastic block, the new ones first."""

    activations: Float[Tensor, " batch *shape"]
    """Output of the frozen trunk, float32, on the device of the model."""
    labels: Int[Tensor, " batch"]
    """Head rows, on the device of the model."""
    rows: Int[np.ndarray, " batch"]
    """Pool rows: which image each one is."""
    num_new: int
    """Rows of the task's own classes."""

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def num_old(self) -> int:
        """Rows of earlier classes."""
        return len(self) - self.num_new

    def old(self) -> Batch:
        """Return the rows of earlier classes."""
        part = slice(self.num_new, None)
        return Batch(self.activations[part], self.labels[part], self.rows[part], num_new=0)


@runtime_checkable
class RowReader(Protocol):
    """The rows of one task, as batches."""

    @property
    def new(self) -> Int[np.ndarray, " new"]:
        """Pool rows of the task's classes."""
        ...

    @property
    def old(self) -> Int[np.ndarray, " old"]:
        """Pool rows of earlier classes that the method's batches read.

        Where the method asks for a `base_sample`, `begin` of the first task finds it here
        although no batch reads it.
        """
        ...

    @property
    def kept(self) -> Int[np.ndarray, " kept"]:
        """Rows of `new` that the buffer may hold in later tasks."""
        ...

    def batches(self, rows: Int[np.ndarray, " rows"], size: int) -> Iterator[Batch]:
        """Yield `rows` in their order, `size` at a time, the last batch with what is left.

        `num_new` of these batches has no meaning.
        """
        ...


@dataclass(frozen=True, slots=True, eq=False)
class TaskReader:
    """A `RowReader` of one task."""

    pool: Pool
    activations: PoolActivations
    new: Int[np.ndarray, " new"]
    old: Int[np.ndarray, " old"]
    kept: Int[np.ndarray, " kept"]

    def batches(self, rows: Int[np.ndarray, " rows"], size: int) -> Generator[Batch]:
        """Yield `rows` in their order, `size` at a time, the last batch with what is left."""
        cuts = [rows[start : start + size] for start in range(0, len(rows), size)]
        return self.stream(cuts, [0] * len(cuts))

    def stream(
        self, batches: Sequence[Int[np.ndarray, " _"]], num_new: Sequence[int]
    ) -> Generator[Batch]:
        """Yield the given batches, the first `num_new` of each being new rows."""
        with closing(self.activations.stream(batches)) as streamed:
            for rows, new, activations in zip(batches, num_new, streamed, strict=True):
                labels = sent(torch.from_numpy(self.pool.labels[rows]), self.activations.device)
                yield Batch(activations, labels, rows, int(new))

"""What a method decides: the old rows that a task may look at, and how batches mix them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

import numpy as np
from jaxtyping import Int

from clinit.headtrain.buffer import Buffer
from clinit.headtrain.init.data import Rows
from clinit.headtrain.pool import Pool
from clinit.headtrain.schedule import Share
from clinit.headtrain.statistics import ClassStatistics
from clinit.headtrain.stream import Task
from clinit.headtrain.task_rows import TaskRows


@runtime_checkable
class Method(Protocol):
    """A way to learn one task after another."""

    def old_rows(self, train: Pool, buffer: Buffer, task: Task) -> Int[np.ndarray, " old"]:
        """Return the pool rows of earlier classes for training and statistics, base first."""
        ...

    def shares(self, rows: TaskRows, batch_size: int) -> Sequence[Share]:
        """Say what each batch is made of; the counts add up to `batch_size`."""
        ...


@runtime_checkable
class ClosedMethod(Method, Protocol):
    """A method that solves for the whole head at each task, and does not train it."""

    @property
    def reads(self) -> tuple[str, ...]:
        """The settings of a head that it reads; the others mean nothing to it."""
        ...

    def solve(self, statistics: ClassStatistics, lam: float) -> Rows:
        """Return the head over all classes of `statistics`; `lam` matters where it is read."""
        ...

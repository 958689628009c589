"""Rehearsal: old rows come from a buffer of limited size and are mixed with new ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Int

from clinit.headtrain.buffer import Buffer
from clinit.headtrain.mix import mixed
from clinit.headtrain.pool import Pool
from clinit.headtrain.schedule import Share
from clinit.headtrain.stream import Task
from clinit.headtrain.task_rows import TaskRows


@dataclass(frozen=True, slots=True)
class Rehearsal:
    """Train on the task's rows and on those of the buffer."""

    mix: str = "text"
    """One of MIXES."""

    def old_rows(self, train: Pool, buffer: Buffer, task: Task) -> Int[np.ndarray, " old"]:
        """Return the rows in the buffer once the earlier classes are seen."""
        return buffer.rows(task.start)

    def shares(self, rows: TaskRows, batch_size: int) -> Sequence[Share]:
        """Mix new and old rows as `mix` says."""
        return mixed(self.mix, rows, batch_size)

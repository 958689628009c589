"""Rehearsal: old rows come from a buffer of limited size; half of each batch is new."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Int

from clinit.headtrain.buffer import Buffer
from clinit.headtrain.pool import Pool
from clinit.headtrain.schedule import Share
from clinit.headtrain.stream import Task
from clinit.headtrain.task_rows import TaskRows


@dataclass(frozen=True, slots=True)
class Rehearsal:
    """Train on the task's rows and on those of the buffer."""

    def old_rows(self, train: Pool, buffer: Buffer, task: Task) -> Int[np.ndarray, " old"]:
        """Return the rows in the buffer once the earlier classes are seen."""
        return buffer.rows(np.arange(task.start))

    def shares(self, rows: TaskRows, batch_size: int) -> Sequence[Share]:
        """Take half of each batch, rounded down, from the new rows; all where nothing is old."""
        new = batch_size // 2 if rows.num_old else batch_size
        return (
            Share(rows.num_old, len(rows.labels), new),
            Share(0, rows.num_old, batch_size - new),
        )

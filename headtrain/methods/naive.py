"""Naive fine-tuning: the new rows alone, in training and in statistics. The lower bound."""

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
class Naive:
    """Train on the task's rows only."""

    def old_rows(self, train: Pool, buffer: Buffer, task: Task) -> Int[np.ndarray, " old"]:
        """Return no row."""
        return np.empty(0, dtype=np.int64)

    def shares(self, rows: TaskRows, batch_size: int) -> Sequence[Share]:
        """Fill each batch with new rows."""
        return (Share(rows.num_old, len(rows.labels), batch_size),)

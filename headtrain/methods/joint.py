"""Joint training: all rows of all classes seen so far, as often as they are. The upper bound."""

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
class Joint:
    """Train on everything that has been seen."""

    def old_rows(self, train: Pool, buffer: Buffer, task: Task) -> Int[np.ndarray, " old"]:
        """Return all rows of the earlier classes."""
        return train.rows_between(0, task.start)

    def shares(self, rows: TaskRows, batch_size: int) -> Sequence[Share]:
        """Draw each batch from all rows: how many of them are new is left to chance."""
        return (Share(0, len(rows.labels), batch_size),)

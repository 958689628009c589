"""The rows that a task may look at: old ones first, those of the new classes after them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Int

from clinit.headtrain.seeds import Draw, generator

LOSS_SAMPLE_ROWS = 2048
"""Most rows on which the new-task loss is measured: a plain sample, not class-balanced."""


@dataclass(frozen=True, slots=True, eq=False)
class TaskRows:
    """Rows of the base classes, of earlier new classes and of the task's classes, in this order."""

    number: int
    """Of the task."""
    rows: Int[np.ndarray, " rows"]
    """Of the pool of training rows."""
    labels: Int[np.ndarray, " rows"]
    """Head rows."""
    num_base: int
    """Rows of base classes."""
    num_old: int
    """Rows of all earlier classes, those of the base included."""

    @property
    def num_new(self) -> int:
        """Rows of the new classes."""
        return len(self.labels) - self.num_old

    def loss_sample(self, seed: int) -> Int[np.ndarray, " sample"]:
        """Choose the new rows on which the new-task loss is measured, sorted."""
        random = generator(seed, Draw.LOSS_SAMPLE, self.number)
        chosen = random.permutation(self.num_new)[:LOSS_SAMPLE_ROWS]
        return np.sort(chosen) + self.num_old

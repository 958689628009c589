"""The rows of one task as the methods of the top-block path read them."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import closing
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Int

from clinit.headtrain.pool import Pool
from clinit.headtrain.top.activations import PoolActivations, sent
from clinit.headtrain.top.methods.interface import Batch


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

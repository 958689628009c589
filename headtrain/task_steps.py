"""The updates of one task in order, each the same calls on the same tensors.

The number of the step is a tensor on the device as well, so that a step is a function of device
memory alone: it can be captured in a CUDA graph once and replayed for all others.
"""

from __future__ import annotations

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from clinit.headtrain.cuda_graph import Replayed
from clinit.headtrain.feed import Feed
from clinit.headtrain.schedule import Schedule
from clinit.headtrain.training import Training


class TaskSteps:
    """The updates of one task, done in order; captured on a CUDA device, plain on a CPU."""

    def __init__(self, training: Training, feed: Feed, schedule: Schedule) -> None:
        device = training.labels.device
        iterations, batch = schedule.batches.shape
        heads = training.losses.shape[1]
        self._training, self._feed = training, feed
        self._stored = feed.features.new_empty(batch, feed.features.shape[1])
        self._number = torch.zeros(1, dtype=torch.int64, device=device)
        is_new = torch.from_numpy(np.arange(batch) < schedule.num_new[:, None])
        self._kinds = torch.stack([is_new, ~is_new], dim=1)[..., None].to(device)
        self._kind_rows = self._kinds.sum(2, dtype=torch.float32)
        self._zero = torch.zeros((), device=device)
        self._losses = torch.zeros(iterations, 2, heads, device=device)
        self._step = (
            Replayed(self._advance, training.optimizers) if device.type == "cuda" else self._advance
        )

    @property
    def losses(self) -> Float[np.ndarray, "iterations heads 2"]:
        """Mean losses of new and old rows before each update; NaN without a row."""
        recorded: np.ndarray = self._losses.transpose(1, 2).cpu().numpy()
        return recorded

    def run(self, start: int, stop: int) -> None:
        """Do the steps `start` to `stop` - 1, which follow those done before."""
        self._feed.prepare(start, stop)
        for _ in range(start, stop):
            self._step()

    def _advance(self) -> None:
        feed, training, number = self._feed, self._training, self._number
        batch = torch.index_select(feed.batches, 0, number).view(-1)
        torch.index_select(feed.features, 0, batch, out=self._stored)
        torch.index_select(feed.labels, 0, batch, out=training.labels)
        training.features.copy_(self._stored)
        training.update()
        self._record(training.losses, number)
        number.add_(1)

    def _record(self, losses: Float[Tensor, "batch heads"], number: Tensor) -> None:
        """Write down the mean loss of each kind of rows, 0 / 0 where there is none."""
        kinds = torch.index_select(self._kinds, 0, number)[0]
        sums = torch.where(kinds, losses, self._zero).sum(1)
        means = sums / torch.index_select(self._kind_rows, 0, number)[0]
        self._losses.index_copy_(0, number, means[None])

"""Train a bank on one task with rehearsal, and evaluate it on the way."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from clinit.headtrain.bank import Bank
from clinit.headtrain.config import ExperimentConfig
from clinit.headtrain.evaluation import LabelledRows
from clinit.headtrain.schedule import Schedule, draw_schedule
from clinit.headtrain.seeds import Draw, generator
from clinit.headtrain.stopwatch import Stopwatch
from clinit.headtrain.training import Training

LOSS_SAMPLE_ROWS = 2048
"""Most rows on which the new-task loss is measured: a plain sample, not class-balanced."""
REPORT_STEPS = 25
"""Most steps between two signs of progress."""


@dataclass(frozen=True, slots=True, eq=False)
class TaskRows:
    """All rows a task may look at: those of the buffer, then those of the new classes."""

    number: int
    features: Float[np.ndarray, "rows dim"]
    labels: Int[np.ndarray, " rows"]
    num_old: int

    @property
    def num_new(self) -> int:
        """Rows of the new classes."""
        return len(self.labels) - self.num_old

    def schedule(self, config: ExperimentConfig) -> Schedule:
        """Draw the batches of the task."""
        return draw_schedule(
            generator(config.seed, Draw.BATCHES, self.number),
            old_rows=self.num_old,
            new_rows=self.num_new,
            iterations=config.iterations,
            batch_size=config.batch_size,
        )

    def loss_sample(self, seed: int) -> Int[np.ndarray, " sample"]:
        """Choose the new rows on which the new-task loss is measured, sorted."""
        random = generator(seed, Draw.LOSS_SAMPLE, self.number)
        chosen = random.permutation(self.num_new)[:LOSS_SAMPLE_ROWS]
        return np.sort(chosen) + self.num_old


def train_task(
    bank: Bank,
    data: TaskRows,
    config: ExperimentConfig,
    *,
    evaluate: Callable[[int, LabelledRows], None],
    stepped: Callable[[int], None],
    watch: Stopwatch,
) -> Float[np.ndarray, "iterations heads 2"]:
    """Train `bank` on a task; return the mean losses of new and old rows before each update.

    Args:
        bank: Heads with the rows of the new classes initialised.
        data: Buffer and new rows.
        config: Iterations, batches and evaluation points.
        evaluate: Called at each evaluation point with the number of updates done and the
            sample for the new-task loss; before the first step too.
        stepped: Called with the number of updates done since the last call.
        watch: Adds up the time of training.
    """
    with watch.phase("prepare"):
        rows = LabelledRows.on(bank.device, data.features, data.labels)
        chosen = torch.from_numpy(data.loss_sample(config.seed)).to(bank.device)
        sample = LabelledRows(rows.features[chosen], rows.labels[chosen])
        schedule = data.schedule(config)
        batches = torch.from_numpy(schedule.batches).to(bank.device)
        losses = torch.full((config.iterations, bank.num_heads, 2), torch.nan, device=bank.device)
        training = Training(bank, config.batch_size)
    for start, stop in pairwise((0, *config.evaluation_points)):
        for first in range(start, stop, REPORT_STEPS):
            block = slice(first, min(first + REPORT_STEPS, stop))
            with watch.phase("train"):
                _train_block(training, rows, batches[block], schedule.num_new, losses[block])
            stepped(block.stop - block.start)
        evaluate(stop, sample)
    recorded: np.ndarray = losses.cpu().numpy()
    return recorded


def _train_block(
    training: Training,
    rows: LabelledRows,
    batches: Int[Tensor, "iterations batch"],
    num_new: int,
    losses: Float[Tensor, "iterations heads 2"],
) -> None:
    for batch, recorded in zip(batches, losses, strict=True):
        sample_losses = training.step(rows.features[batch], rows.labels[batch])
        recorded[:, 0] = sample_losses[:num_new].mean(0)
        if num_new < len(batch):
            recorded[:, 1] = sample_losses[num_new:].mean(0)

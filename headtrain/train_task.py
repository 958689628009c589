"""Train a bank on one task, and evaluate it on the way."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from clinit.headtrain.bank import Bank
from clinit.headtrain.config import ExperimentConfig
from clinit.headtrain.evaluation import LabelledRows
from clinit.headtrain.schedule import Schedule
from clinit.headtrain.stopwatch import Stopwatch
from clinit.headtrain.task_rows import TaskRows
from clinit.headtrain.training import Training

REPORT_STEPS = 25
"""Most steps between two signs of progress."""


def train_task(
    bank: Bank,
    features: Float[np.ndarray, "rows dim"],
    data: TaskRows,
    schedule: Schedule,
    config: ExperimentConfig,
    *,
    evaluate: Callable[[int, LabelledRows], None],
    stepped: Callable[[int], None],
    watch: Stopwatch,
) -> Float[np.ndarray, "iterations heads 2"]:
    """Train `bank` on a task; return the mean losses of new and old rows before each update.

    Args:
        bank: Heads with the rows of the new classes initialised.
        features: Those of the old and new rows.
        data: Which rows these are.
        schedule: The batches.
        config: Evaluation points and seed.
        evaluate: Called at each evaluation point with the number of updates done and the
            sample for the new-task loss; before the first step too.
        stepped: Called with the number of updates done since the last call.
        watch: Adds up the time of training.
    """
    with watch.phase("prepare"):
        rows = LabelledRows.on(bank.device, features, data.labels)
        chosen = torch.from_numpy(data.loss_sample(config.seed)).to(bank.device)
        sample = LabelledRows(rows.features[chosen], rows.labels[chosen])
        batches = torch.from_numpy(schedule.batches).to(bank.device)
        losses = torch.full((len(batches), bank.num_heads, 2), torch.nan, device=bank.device)
        training = Training(bank, config.batch_size)
    for start, stop in pairwise((0, *config.evaluation_points)):
        for first in range(start, stop, REPORT_STEPS):
            block = slice(first, min(first + REPORT_STEPS, stop))
            with watch.phase("train"):
                _train_block(training, rows, batches[block], schedule.num_new[block], losses[block])
            stepped(block.stop - block.start)
        evaluate(stop, sample)
    recorded: np.ndarray = losses.cpu().numpy()
    return recorded


def _train_block(
    training: Training,
    rows: LabelledRows,
    batches: Int[Tensor, "iterations batch"],
    num_new: Int[np.ndarray, " iterations"],
    losses: Float[Tensor, "iterations heads 2"],
) -> None:
    for batch, new, recorded in zip(batches, num_new.tolist(), losses, strict=True):
        sample_losses = training.step(rows.features[batch], rows.labels[batch])
        if new:
            recorded[:, 0] = sample_losses[:new].mean(0)
        if new < len(batch):
            recorded[:, 1] = sample_losses[new:].mean(0)

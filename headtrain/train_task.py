"""Train a bank on one task, and evaluate it on the way."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import numpy as np
import torch
from jaxtyping import Float

from clinit.headtrain.bank import Bank
from clinit.headtrain.config import ExperimentConfig
from clinit.headtrain.feed import feed_of
from clinit.headtrain.labelled_rows import LabelledRows
from clinit.headtrain.schedule import Schedule
from clinit.headtrain.stopwatch import Stopwatch
from clinit.headtrain.task_rows import TaskRows
from clinit.headtrain.task_steps import TaskSteps
from clinit.headtrain.training import Training

REPORT_STEPS = 25
"""Most steps between two signs of progress."""


def train_task(
    bank: Bank,
    rows: LabelledRows,
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
        rows: Features and labels of the old and new rows.
        data: Which rows these are.
        schedule: The batches.
        config: Evaluation points and seed.
        evaluate: Called at each evaluation point with the number of updates done and the
            sample for the new-task loss; before the first step too.
        stepped: Called with the number of updates done since the last call.
        watch: Adds up the time of training.
    """
    with watch.phase("prepare"):
        sample = rows.take(torch.from_numpy(data.loss_sample(config.seed)))
        feed = feed_of(rows, torch.from_numpy(schedule.batches), REPORT_STEPS)
        steps = TaskSteps(Training(bank, config.batch_size), feed, schedule)
    for start, stop in pairwise((0, *config.evaluation_points)):
        for first in range(start, stop, REPORT_STEPS):
            last = min(first + REPORT_STEPS, stop)
            with watch.phase("train"):
                steps.run(first, last)
            stepped(last - first)
        evaluate(stop, sample)
    return steps.losses

"""Train the top of a network on one task, and evaluate it on the way."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float
from torch.optim.lr_scheduler import OneCycleLR

from clinit.headtrain.config import ExperimentConfig
from clinit.headtrain.stopwatch import Stopwatch
from clinit.headtrain.top.methods import TopMethod
from clinit.headtrain.top.methods.interface import Batch
from clinit.headtrain.top.model import PlasticModel


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Watchers:
    """What is called as a task goes on, each with the number of updates done."""

    evaluate: Callable[[int], None]
    """At each evaluation point; before the first step too."""
    stepped: Callable[[int], None]
    """After each update."""
    save: Callable[[int], None]
    """Every `checkpoint_every` updates."""


def train_top(
    model: PlasticModel,
    method: TopMethod,
    batches: Iterator[tuple[Batch, Batch | None]],
    optimizer: torch.optim.Optimizer,
    schedule: OneCycleLR,
    losses: Float[np.ndarray, "iterations 1 2"],
    config: ExperimentConfig,
    *,
    first: int,
    checkpoint_every: int,
    watchers: Watchers,
    watch: Stopwatch,
) -> None:
    """Do the updates from number `first` on; write the losses before each one into `losses`.

    Args:
        model: Opened for the task, its new rows initialised.
        method: What is minimised.
        batches: Those that are left, with second draws where the method wants them.
        optimizer: Of the trainable parameters.
        schedule: Of its rates.
        losses: Mean losses of the new and of the old rows of each batch.
        config: Number of updates and evaluation points.
        first: Updates that have been done.
        checkpoint_every: Updates between two checkpoints; 0 for none.
        watchers: Who is told.
        watch: Adds up the time of training, reading included.
    """
    points = set(config.evaluation_points)
    if first == 0:
        watchers.evaluate(0)
    for iteration in range(first, config.iterations):
        with watch.phase("train"):
            batch, second = next(batches)
            optimizer.zero_grad()
            loss, each = method.loss(model, batch, second)
            loss.backward()
            optimizer.step()
            if iteration + 1 < config.iterations:
                schedule.step()
            values, new = each.detach().float(), batch.num_new
            if new:
                losses[iteration, 0, 0] = float(values[:new].mean())
            if batch.num_old:
                losses[iteration, 0, 1] = float(values[new:].mean())
        done = iteration + 1
        watchers.stepped(done)
        if done in points:
            watchers.evaluate(done)
        if checkpoint_every and done % checkpoint_every == 0 and done < config.iterations:
            watchers.save(done)

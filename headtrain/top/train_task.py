"""Train the top of a network on one task, and evaluate it on the way."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor
from torch.optim.lr_scheduler import OneCycleLR

from clinit.headtrain.study import Stream
from clinit.headtrain.top.activations.batches import Batch
from clinit.headtrain.top.methods import TopMethod
from clinit.headtrain.top.network.model import PlasticModel
from clinit.stopwatch import Stopwatch


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Watchers:
    """Callbacks of a task; each is given the number of updates done."""

    evaluate: Callable[[int], None]
    """Called at each evaluation point, the one before the first step included."""
    stepped: Callable[[int], None]
    """Called after each update."""
    save: Callable[[int], None]
    """Called every `checkpoint_every` updates."""


def train_top(
    model: PlasticModel,
    method: TopMethod,
    batches: Iterator[tuple[Batch, Batch | None]],
    optimizer: torch.optim.Optimizer,
    schedule: OneCycleLR,
    losses: Float[np.ndarray, "iterations 1 2"],
    stream: Stream,
    *,
    first: int,
    checkpoint_every: int,
    watchers: Watchers,
    watch: Stopwatch,
) -> None:
    """Do the updates from number `first` on; write the losses before each one into `losses`.

    Args:
        model: Opened for the task, its new rows initialised.
        method: Gives the loss that is minimised.
        batches: Batches that are left, with second draws where the method asks for them.
        optimizer: Optimizer of the trainable parameters.
        schedule: Schedule of its learning rates.
        losses: Mean losses of the new and of the old rows of each batch.
        stream: Number of updates and evaluation points.
        first: Updates that have been done.
        checkpoint_every: Updates between two checkpoints; 0 for none.
        watchers: Callbacks.
        watch: Adds up the time of training, reading included.
    """
    points = set(stream.evaluation_points)
    saves = (
        set(range(checkpoint_every, stream.iterations, checkpoint_every))
        if checkpoint_every
        else set()
    )
    if first == 0:
        watchers.evaluate(0)
    stops = sorted(stop for stop in points | saves if stop > first)
    for start, stop in pairwise((first, *stops)):
        with watch.phase("train"):
            means = train_span(
                model, method, batches, optimizer, schedule, range(start, stop), watchers.stepped
            )
            losses[start:stop, 0] = means.cpu().numpy()
        if stop in points:
            watchers.evaluate(stop)
        if stop in saves:
            watchers.save(stop)


def train_span(
    model: PlasticModel,
    method: TopMethod,
    batches: Iterator[tuple[Batch, Batch | None]],
    optimizer: torch.optim.Optimizer,
    schedule: OneCycleLR,
    span: range,
    stepped: Callable[[int], None],
) -> Float[Tensor, "span 2"]:
    """Do the updates of numbers `span`; the host never waits for the device.

    Returns the mean losses of the new and of the old rows of each batch, on the device: to read
    one at each step would make it wait.
    """
    means = torch.full((len(span), 2), torch.nan, device=model.device)
    for place, iteration in enumerate(span):
        batch, second = next(batches)
        optimizer.zero_grad()
        loss, each = method.loss(model, batch, second)
        loss.backward()
        optimizer.step()
        if iteration + 1 < schedule.total_steps:
            schedule.step()
        _record(means[place], each.float(), batch.num_new)
        stepped(iteration + 1)
    return means


def _record(means: Float[Tensor, " 2"], losses: Float[Tensor, " batch"], num_new: int) -> None:
    """Write down the mean losses of the new rows and, where there are any, of the old rows."""
    if num_new:
        means[0] = losses[:num_new].mean()
    if num_new < len(losses):
        means[1] = losses[num_new:].mean()

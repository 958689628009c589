"""Linear probe: how well a linear head could tell apart classes that are still to come.

Forward transfer, as the paper measures it: after a task, a new head is trained on the frozen
features of the classes of the next task alone, with cross entropy, AdamW, a constant learning
rate, no weight decay and no augmentation. The reported number is the best top-1 accuracy over the
evaluation points, the one before the first step included. It is chosen on the validation rows it
is measured on, so it is an upper estimate.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Int
from torch import Tensor

from clinit.headtrain.start.new_rows import random_rows
from clinit.headtrain.stream.seeds import Draw, generator
from clinit.headtrain.stream.task_plan import Share, draw_schedule
from clinit.headtrain.study import Training
from clinit.headtrain.train.evaluate import count_correct
from clinit.headtrain.train.heads import Bank
from clinit.headtrain.train.rows import LabelledRows
from clinit.headtrain.train.step import Updates


@dataclass(frozen=True, slots=True)
class Probe:
    """Accuracy of a probe over its training."""

    top1_best: float
    """Best top-1 accuracy, in [0, 1]."""
    iteration: int
    """Updates after which it was reached first."""
    curve: tuple[tuple[int, float], ...]
    """Updates done and top-1 accuracy, at each evaluation point."""


def linear_probe(
    train: LabelledRows,
    val: LabelledRows,
    *,
    num_classes: int,
    seed: int,
    index: int = 0,
    lr: float = 1e-3,
    weight_decay: float = 0.0,
    batch: int = 128,
    iterations: int = 600,
    eval_every: int = 50,
) -> Probe:
    """Train a random linear head on `train` and measure it on `val`, on the device of `train`.

    Args:
        train: Features and labels 0 to `num_classes` - 1.
        val: Features and labels of the rows it is measured on.
        num_classes: Rows of the head.
        seed: Seed of the random head (as `torch.nn.Linear` draws it) and of the batches.
        index: Which probe of a run it is: the number of the task it follows.
        lr: Learning rate; the paper's values from here on.
        weight_decay: Decoupled weight decay.
        batch: Rows per batch; no row is drawn again before all others have been.
        iterations: Updates.
        eval_every: Updates between two evaluations; the last update is followed by one too.

    Raises:
        ValueError: If there are no rows, or a label or another argument is out of range.
    """
    _check(train, val, num_classes, batch=batch, iterations=iterations, eval_every=eval_every)
    random = generator(seed, Draw.PROBE, index)
    device, dim = train.features.device, train.features.shape[1]
    settings = Training(loss="ce", lr=lr, weight_decay=weight_decay)
    bank = Bank(random_rows(random, num_classes, dim), [settings], device)
    shares = [Share(0, len(train), batch)]
    schedule = draw_schedule(random, shares, first_new=0, iterations=iterations)
    curve = _train(bank, train, val, torch.from_numpy(schedule.batches).to(device), eval_every)
    iteration, best = max(curve, key=lambda point: point[1])
    return Probe(top1_best=best, iteration=iteration, curve=tuple(curve))


@torch.no_grad()
def _train(
    bank: Bank,
    train: LabelledRows,
    val: LabelledRows,
    batches: Int[Tensor, "iterations batch"],
    eval_every: int,
) -> list[tuple[int, float]]:
    """Train the one head of a bank; return its accuracy at each evaluation point."""
    training = Updates(bank, batches.shape[1])
    curve = [(0, _top1(bank, val))]
    for done, chosen in enumerate(batches, start=1):
        training.step(train.features[chosen], train.labels[chosen])
        if done % eval_every == 0 or done == len(batches):
            curve.append((done, _top1(bank, val)))
    return curve


def _top1(bank: Bank, val: LabelledRows) -> float:
    return int(count_correct(bank, val).sum()) / len(val)


def _check(train: LabelledRows, val: LabelledRows, num_classes: int, **counts: int) -> None:
    least = {"batch": 1, "iterations": 0, "eval_every": 1}
    for name, value in counts.items():
        if value < least[name]:
            raise ValueError(f"{name} must be at least {least[name]}, got {value}")
    for name, rows in (("training", train), ("validation", val)):
        if not len(rows):
            raise ValueError(f"a probe needs at least one {name} row, got none")
        low, high = int(rows.labels.min()), int(rows.labels.max())
        if low < 0 or high >= num_classes:
            raise ValueError(
                f"{name} labels lie in [{low}, {high}], expected [0, {num_classes - 1}]"
            )

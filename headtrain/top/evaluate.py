"""Features of the network in its present state, and the measurements made on them.

Forward transfer is measured by a linear probe.
As in the paper, after a task, a new head is trained on the frozen
features of the classes of the next task alone, with cross entropy, AdamW, a constant learning
rate, no weight decay and no augmentation. The reported number is the best top-1 accuracy over the
evaluation points, the one before the first step included. It is chosen on the validation rows it
is measured on, so it is an upper estimate.
"""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass, replace

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from clinit.headtrain.start.new_rows import random_rows
from clinit.headtrain.stream.buffer import Pool, TaskRows
from clinit.headtrain.stream.scenario import Task
from clinit.headtrain.stream.seeds import Draw, generator
from clinit.headtrain.stream.task_plan import Share, draw_schedule
from clinit.headtrain.study.parts import Training
from clinit.headtrain.study.study import Study
from clinit.headtrain.top.activations import PoolActivations
from clinit.headtrain.top.inputs import TopInputs
from clinit.headtrain.top.network import PlasticModel
from clinit.headtrain.train.evaluate import Evaluation, count_correct, evaluate, mean_losses
from clinit.headtrain.train.heads import Bank, LabelledRows
from clinit.headtrain.train.step import Updates

FORWARD_ROWS = {"cpu": 32, "cuda": 256}
"""Rows per forward pass where no gradient is needed, by device.

For larger activations a CPU gets its memory anew at each layer, page by page: with a ViT-tiny,
batches of 256 rows are a sixth slower than batches of 32.
"""


@torch.no_grad()
def features(
    model: PlasticModel, activations: PoolActivations, rows: Int[np.ndarray, " rows"]
) -> Float[Tensor, "rows dim"]:
    """Return the features of pool rows, in float32 on the model's device."""
    found = torch.empty((len(rows), model.dim), device=model.device)
    with closing(activations.blocks(rows, FORWARD_ROWS[model.device.type])) as blocks:
        for block, values in blocks:
            found[block] = model.features(values)
    return found


def measure(
    model: PlasticModel,
    inputs: TopInputs,
    study: Study,
    task: Task,
    rows: TaskRows,
    *,
    list_mistakes: bool,
) -> tuple[Evaluation, Float[np.ndarray, " 1"]]:
    """Return what is right of the test rows seen, and the new-task loss.

    Both come from the code that measures a bank of heads, here of one head, in float32.
    """
    training = replace(study.training, precision="float32")
    bank = Bank(model.tensors(), [training], model.device)
    tested = inputs.scenario.val.rows_between(0, task.stop)
    test = _labelled(model, inputs.val, inputs.scenario.val, tested)
    found = evaluate(bank, test, inputs.scenario.ends, list_mistakes=list_mistakes)
    chosen = rows.rows[rows.loss_sample(inputs.study.stream.seed)]
    sample = _labelled(model, inputs.train, inputs.scenario.train, chosen)
    return found, mean_losses(bank, sample)


def probe(model: PlasticModel, inputs: TopInputs, following: Task) -> Probe | None:
    """Probe the features for the classes of the next task; None if none of them is tested."""
    train, val = inputs.scenario.train, inputs.scenario.val
    train_rows = train.rows_between(following.start, following.stop)
    val_rows = val.rows_between(following.start, following.stop)
    if not len(val_rows):
        return None
    return linear_probe(
        _labelled(model, inputs.train, train, train_rows, first=following.start),
        _labelled(model, inputs.val, val, val_rows, first=following.start),
        num_classes=len(following.classes),
        seed=inputs.study.stream.seed,
        index=following.number - 1,
    )


def _labelled(
    model: PlasticModel,
    activations: PoolActivations,
    pool: Pool,
    rows: Int[np.ndarray, " rows"],
    *,
    first: int = 0,
) -> LabelledRows:
    labels = torch.from_numpy(pool.labels[rows] - first).to(model.device)
    return LabelledRows(features(model, activations, rows), labels)


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

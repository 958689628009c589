"""Features of the network in its present state, and the measurements made on them.

Forward transfer is measured by a linear probe, as in the paper. After a task, a new head is trained
on frozen features of only the classes of the next task. It is trained with cross entropy, AdamW, a
constant learning rate, no weight decay and no augmentation. The reported number is the best top-1
accuracy over all evaluation points, including the point before the first step. It is an upper
estimate, because it is chosen on the validation rows on which it is measured.
"""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from clinit.headtrain.heads.seeds import Draw, generator
from clinit.headtrain.heads.start.new_rows import random_rows
from clinit.headtrain.protocol.stream.buffer import Pool
from clinit.headtrain.protocol.stream.scenario import Task
from clinit.headtrain.protocol.stream.task_plan import Lesson, Share, draw_schedule
from clinit.headtrain.protocol.study.parts import Training
from clinit.headtrain.protocol.study.study import Study
from clinit.headtrain.protocol.train.evaluate import (
    Evaluation,
    count_correct,
    evaluate,
    mean_losses,
)
from clinit.headtrain.protocol.train.heads import Bank, LabelledRows
from clinit.headtrain.protocol.train.step import Updates
from clinit.headtrain.top.activations import PoolActivations, cut
from clinit.headtrain.top.inputs import TopInputs
from clinit.headtrain.top.network import PlasticModel

FORWARD_ROWS = {"cpu": 32, "cuda": 256}
"""Rows per forward pass if no gradient is needed, by device.

For larger activations, a CPU allocates new pages of memory at each layer: with a ViT-tiny, batches
of 256 rows are a sixth slower than batches of 32.
"""


@torch.no_grad()
def features(
    model: PlasticModel, activations: PoolActivations, rows: Int[np.ndarray, " rows"]
) -> Float[Tensor, "rows dim"]:
    """Return the features of pool rows, in float32 on the model's device."""
    found = torch.empty((len(rows), model.dim), device=model.device)
    parts, done = cut(rows, FORWARD_ROWS[model.device.type]), 0
    with closing(activations.stream(parts)) as streamed:
        for values in streamed:
            found[done : done + len(values)] = model.features(values)
            done += len(values)
    return found


def measure(
    model: PlasticModel,
    inputs: TopInputs,
    study: Study,
    lesson: Lesson,
    *,
    all_mistakes: bool,
) -> tuple[Evaluation, Float[np.ndarray, " 1"]]:
    """Return the correct answers on test rows of classes seen, and the new-task loss.

    Both are measured by the code for banks of heads, here with one head, in float32.
    """
    training = replace(study.training, precision="float32")
    bank = Bank(model.tensors(), [training], model.device)
    tested = inputs.experiment.scenario.val.rows_between(0, lesson.task.stop)
    test = _labelled(model, inputs.val, inputs.experiment.scenario.val, tested)
    found = evaluate(bank, test, inputs.experiment.scenario.ends, list_mistakes=all_mistakes)
    rows = lesson.rows
    chosen = rows.rows[rows.loss_sample(inputs.experiment.study.stream.seed)]
    sample = _labelled(model, inputs.train, inputs.experiment.scenario.train, chosen)
    return found, mean_losses(bank, sample)


def probe(model: PlasticModel, inputs: TopInputs, following: Task) -> dict[str, Any] | None:
    """Probe the features for the classes of the next task; None if they have no test rows."""
    sides = []
    for activations, pool in (
        (inputs.train, inputs.experiment.scenario.train),
        (inputs.val, inputs.experiment.scenario.val),
    ):
        rows = pool.rows_between(following.start, following.stop)
        sides.append(_labelled(model, activations, pool, rows, first=following.start))
    if not len(sides[1]):
        return None
    random = generator(inputs.experiment.study.stream.seed, Draw.PROBE, following.number - 1)
    curve = linear_probe(sides[0], sides[1], len(following.classes), random)
    iteration, best = max(curve, key=lambda point: point[1])
    return {"top1": best, "iteration": iteration}


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


PROBE = Training(loss="ce", lr=1e-3, weight_decay=0.0)
PROBE_BATCH, PROBE_ITERATIONS, PROBE_EVERY = 128, 600, 50
"""The paper's values: rows per batch, updates, and updates between two evaluations."""


@torch.no_grad()
def linear_probe(
    train: LabelledRows, val: LabelledRows, num_classes: int, random: np.random.Generator
) -> list[tuple[int, float]]:
    """Train a random linear head on `train` and measure it on `val`, on the device of `train`.

    Args:
        train: Features and labels 0 to `num_classes` - 1.
        val: Features and labels of the rows on which the head is measured.
        num_classes: Number of rows of the head.
        random: Draws the head, as `torch.nn.Linear` does, and the batches; a row is repeated only
            after all other rows were used.

    Returns:
        Updates done and top-1 accuracy in [0, 1], at each evaluation point.
    """
    device, dim = train.features.device, train.features.shape[1]
    bank = Bank(random_rows(random, num_classes, dim), [PROBE], device)
    shares = [Share(0, len(train), PROBE_BATCH)]
    schedule = draw_schedule(random, shares, first_new=0, iterations=PROBE_ITERATIONS)
    updates = Updates(bank, schedule.batches.shape[1])
    curve = [(0, int(count_correct(bank, val).sum()) / len(val))]
    for done, chosen in enumerate(torch.from_numpy(schedule.batches).to(device), start=1):
        updates.step(train.features[chosen], train.labels[chosen])
        if done % PROBE_EVERY == 0 or done == PROBE_ITERATIONS:
            curve.append((done, int(count_correct(bank, val).sum()) / len(val)))
    return curve

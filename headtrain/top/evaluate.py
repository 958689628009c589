"""Features of the network in its present state, and the measurements made on them."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from clinit.headtrain.stream.buffer import Pool, TaskRows
from clinit.headtrain.stream.scenario import Task
from clinit.headtrain.study import Study
from clinit.headtrain.top.activations.rows import PoolActivations
from clinit.headtrain.top.inputs import TopInputs
from clinit.headtrain.top.network.model import PlasticModel
from clinit.headtrain.top.probe import Probe, linear_probe
from clinit.headtrain.train.evaluate import Evaluation, evaluate, mean_losses
from clinit.headtrain.train.heads import Bank
from clinit.headtrain.train.rows import LabelledRows

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

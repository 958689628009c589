"""The closed form of a study, the memory that it takes, and its evaluation on test rows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int

from clinit.errors import MachineError
from clinit.headtrain.heads.array import FeatureRows, slices, take, to_numpy
from clinit.headtrain.heads.closed.interface import ClosedForm
from clinit.headtrain.heads.closed.methods import Ranpac, SimpleCil, Slda
from clinit.headtrain.heads.losses import loss_named
from clinit.headtrain.protocol.stream.scenario import Scenario
from clinit.headtrain.protocol.study.study import Study
from clinit.headtrain.protocol.train.evaluate import BankEvaluation
from clinit.machine import choose_device, free_memory
from clinit.words import size_text

LINEAR = frozenset({"slda", "simplecil"})
"""Methods whose scores come from a linear head on the features themselves."""


def closed_form(study: Study, zeros: Float[Any, " dim"]) -> ClosedForm:
    """Return the method of a study, without any rows.

    Args:
        study: A study with one of `CLOSED_METHODS`.
        zeros: Zeros of the width of a feature, in float64; sets library and device.
    """
    closed, seed = study.closed, study.stream.seed
    match study.stream.method:
        case "slda":
            return Slda(closed.slda, zeros)
        case "simplecil":
            return SimpleCil(zeros)
    return Ranpac(closed.ranpac, zeros, seed=seed)


_GRAM_COPIES = 5
"""Measured peak of memory, as a multiple of one Gram matrix. It includes the matrix, the copy that
is solved, its factor, and the buffer in which BLAS transposes."""
_PATH_COPIES = 6
"""Further copies if a task has more rows than random features: another Gram matrix for lambda, its
eigenvectors, and the workspace of the decomposition."""


def check_memory(scenario: Scenario, study: Study) -> None:
    """Check that the statistics of a study fit into memory, if they are large.

    Raises:
        MachineError: If they do not.
    """
    ranpac, counts = study.closed.ranpac, scenario.train_counts
    if study.stream.method != "ranpac":
        return
    most = max(int(counts[task.rows].sum()) for task in scenario.learnt)
    chooses = ranpac.lam == "auto" and most > ranpac.width
    copies = _GRAM_COPIES + (_PATH_COPIES if chooses else 0)
    need = 8 * (copies * ranpac.width**2 + 2 * scenario.num_classes * ranpac.width)
    free = free_memory(choose_device(study.training.device))
    if need > free:
        raise MachineError(
            f"the statistics of {study.stream.method} take {size_text(need)} of memory, but"
            f" {size_text(free)} are free",
            remedy="Give a smaller --ranpac-width, or --method slda.",
        )


BLOCK_VALUES = 2**23
"""Numbers in memory while a block is scored: 32 MB in float32."""


def evaluate(
    form: ClosedForm,
    features: FeatureRows,
    labels: Int[np.ndarray, " rows"],
    ends: Sequence[int],
    num_classes: int,
) -> BankEvaluation:
    """Count correct answers as for a bank of one head; the first of equal scores wins.

    Args:
        form: A method that has learnt the classes of all rows.
        features: Features of the rows.
        labels: Classes of the rows, ascending.
        ends: Head row after the last class of each task, in order.
        num_classes: Classes learnt so far.
    """
    bounds = np.array([0, *ends])
    task = np.searchsorted(bounds, labels, side="right")
    predicted = np.empty(len(labels), dtype=np.int64)
    in_task = np.zeros(len(labels), dtype=bool)
    for block, scores in _scored(form, features, num_classes):
        predicted[block] = scores.argmax(axis=1)
        for number in np.unique(task[block]):
            start, stop = bounds[number - 1], bounds[number]
            here = task[block] == number
            best = scores[here, start:stop].argmax(axis=1) + start
            in_task[block][here] = best == labels[block][here]
    right = predicted == labels
    number = np.arange(len(labels)) - np.searchsorted(labels, labels)  # within its class
    mistakes = np.stack([labels, number, predicted])[:, ~right].astype(np.int32)
    correct, correct_in_task = (
        np.bincount(labels[hits], minlength=num_classes)[None, :] for hits in (right, in_task)
    )
    return BankEvaluation(correct, correct_in_task, (mistakes,))


def mean_loss(
    form: ClosedForm, features: FeatureRows, labels: Int[np.ndarray, " rows"], loss: str
) -> float:
    """Return the mean loss of the scores over rows, as if they were logits."""
    total, value = 0.0, loss_named(loss).value
    for block, scores in _scored(form, features, 1):
        logits = torch.from_numpy(np.ascontiguousarray(scores, np.float32))
        total += float(value(logits, torch.from_numpy(labels[block])).double().sum())
    return total / len(labels)


def _scored(
    form: ClosedForm, features: FeatureRows, num_classes: int
) -> Iterator[tuple[slice, Float[np.ndarray, "block classes"]]]:
    rows = max(64, BLOCK_VALUES // max(1, form.block_values + num_classes))
    for block in slices(features.shape[0], rows):
        yield block, to_numpy(form.scores(take(features, block)))

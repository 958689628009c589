"""Which test rows a closed form labels right; scores exist for a block of rows at a time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Int

from clinit.headtrain.array import to_numpy
from clinit.headtrain.bank.evaluate import Mistakes
from clinit.headtrain.closed.interface import ClosedForm
from clinit.headtrain.feature_rows import FeatureRows, take
from clinit.headtrain.losses import loss_named

BLOCK_VALUES = 2**23
"""Numbers that scoring a block holds: 32 MB in float32."""


@dataclass(frozen=True, slots=True, eq=False)
class Found:
    """What a closed form labels right, by class, and what it takes the other rows for."""

    correct: Int[np.ndarray, " classes"]
    correct_in_task: Int[np.ndarray, " classes"]
    """Where only the classes that arrived together with that of the row are asked about."""
    mistakes: Mistakes


def evaluate(
    form: ClosedForm,
    features: FeatureRows,
    labels: Int[np.ndarray, " rows"],
    ends: Sequence[int],
    num_classes: int,
) -> Found:
    """Label rows, sorted by class; the first of equal scores wins.

    Args:
        form: A method that has learnt all their classes.
        features: Those of the rows.
        labels: Their classes, ascending.
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
    wrong = np.flatnonzero(~right)
    first = np.searchsorted(labels, labels)  # of the same class
    told = np.stack([labels, np.arange(len(labels)) - first, predicted])[:, wrong]
    return Found(
        _counts(labels, right, num_classes),
        _counts(labels, in_task, num_classes),
        told.astype(np.int32),
    )


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
    values = max(1, form.block_values + num_classes)
    rows = max(64, BLOCK_VALUES // values)
    for start in range(0, features.shape[0], rows):
        block = slice(start, min(start + rows, features.shape[0]))
        scores: Any = to_numpy(form.scores(take(features, block)))
        yield block, scores


def _counts(
    labels: Int[np.ndarray, " rows"], right: Bool[np.ndarray, " rows"], num_classes: int
) -> Int[np.ndarray, " classes"]:
    return np.bincount(labels[right], minlength=num_classes)

"""What closed forms over the stream offer.

Scores of a linear layer, in the float32 that a head file stores it in.

Which test rows a closed form labels right; scores exist for a block of rows at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from jaxtyping import Bool, Float, Int

from clinit.headtrain.array import FeatureRows, namespace, take, to_numpy, widen
from clinit.headtrain.rows import Rows
from clinit.headtrain.statistics.lambda_curve import LambdaCurve
from clinit.headtrain.train.evaluate import Mistakes
from clinit.headtrain.train.losses import loss_named
from clinit.stopwatch import Stopwatch

Progress = Callable[[str, int, int], None]
"""Called with what is done, how far it is, and how far it goes."""


def silent(what: str, done: int, total: int) -> None:
    """Show nothing."""


@dataclass(frozen=True, slots=True, eq=False)
class Arrival:
    """All training rows of the classes that arrive together; no row comes twice."""

    task: int
    """0 for the base classes."""
    features: FeatureRows
    labels: Int[np.ndarray, " rows"]
    """Head rows, in the order of the stream."""
    num_classes: int
    """Head rows once the task is learnt, those of classes without data included."""
    watch: Stopwatch = field(default_factory=Stopwatch)
    """Adds up seconds by what they are spent on: statistics, lambda, solve."""
    progress: Progress = silent
    groups: Int[np.ndarray, " rows"] | None = None
    """Equal for rows that repeat each other; None: no row repeats another."""


@dataclass(frozen=True, slots=True, eq=False)
class Solution:
    """How the scores of a task came about."""

    lam: float | None = None
    curve: LambdaCurve | None = None
    notes: tuple[str, ...] = ()
    """What the user should know."""


@dataclass(frozen=True, slots=True, eq=False)
class StoredHead:
    """A linear layer, on the features or on what a map makes of them."""

    rows: Rows
    feature_map: Mapping[str, Any] | None = None
    """Description of the map; None where the rows read the features themselves."""


@runtime_checkable
class ClosedForm(Protocol):
    """Statistics of all rows seen, and the classifier that follows from them."""

    @property
    def block_values(self) -> int:
        """Numbers that scoring holds for each row, so that callers can choose their blocks."""
        ...

    def learn(self, arrival: Arrival) -> Solution:
        """Add the rows of classes that arrive, and solve unless they are those of the base."""
        ...

    def scores(self, features: Float[Any, "rows dim"]) -> Float[Any, "rows classes"]:
        """Return what each class scores; the largest wins. Rows of classes learnt so far."""
        ...

    def head(self) -> StoredHead | None:
        """Return the linear layer that the scores are of; None where there is none."""
        ...


def linear_scores(rows: Rows, features: Float[Any, "rows dim"]) -> Float[Any, "rows classes"]:
    """Return weight @ features + bias, as the stored head would give them."""
    xp = namespace(rows.weight)
    weight, bias = xp.astype(rows.weight, xp.float32), xp.astype(rows.bias, xp.float32)
    return xp.astype(widen(features), xp.float32) @ weight.T + bias


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

"""The interface of closed forms over the stream, and their evaluation on test rows.

Scores of a linear layer are computed in float32, as from a head file, for one block of rows at a
time.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int

from clinit.headtrain.array import FeatureRows, as_type, namespace, slices, take, to_numpy
from clinit.headtrain.closed.moments import FeatureMap, Progress
from clinit.headtrain.rows import Rows
from clinit.headtrain.statistics.class_statistics import ClassStatistics
from clinit.headtrain.statistics.lambda_curve import LambdaCurve
from clinit.headtrain.train.evaluate import Evaluation
from clinit.headtrain.train.losses import loss_named
from clinit.stopwatch import Stopwatch


@dataclass(frozen=True, slots=True, eq=False)
class Arrival:
    """All training rows of the classes that arrive together; each row arrives once."""

    task: int
    """0 for the base classes."""
    features: FeatureRows
    labels: Int[np.ndarray, " rows"]
    """Class of each row of features, as the number of a head row."""
    num_classes: int
    """Number of head rows after the task, including classes without data."""
    watch: Stopwatch = field(default_factory=Stopwatch)
    """Adds up seconds by phase: statistics, lambda, solve."""
    progress: Progress = lambda what, done, total: None
    groups: Int[np.ndarray, " rows"] | None = None
    """Group of each row, equal for rows that repeat each other; None if no row repeats another."""
    statistics: ClassStatistics | None = None
    """Statistics that replace the rows of the base; `features` is then empty."""


@dataclass(frozen=True, slots=True, eq=False)
class Solution:
    """The lambda of a task and, if it was chosen from data, the error of each lambda."""

    lam: float | None = None
    curve: LambdaCurve | None = None


@dataclass(frozen=True, slots=True, eq=False)
class StoredHead:
    """A linear layer, on the features or on a map of the features."""

    rows: Rows
    feature_map: Mapping[str, Any] | None = None
    """Description of the map; None if the layer reads the features themselves."""


class ClosedForm:
    """Statistics of all rows seen, and the classifier that follows from them; linear by default."""

    block_values = 0
    """Numbers in memory per scored row, from which callers choose the size of blocks."""

    def __init__(self, zeros: Float[Any, " dim"], feature_map: FeatureMap | None = None) -> None:
        """Begin without classes; `zeros` sets library, device and width of the features."""
        self._rows = Rows(zeros[None, :][:0, :], zeros[:0])
        self._map = feature_map

    def learn(self, arrival: Arrival) -> Solution:
        """Add the rows of classes that arrive, and solve unless they belong to the base."""
        raise NotImplementedError

    def scores(self, features: Float[Any, "rows dim"]) -> Float[Any, "rows classes"]:
        """Return the score of each class seen so far; the largest wins."""
        return linear_scores(self._rows, features if self._map is None else self._map(features))

    def head(self) -> StoredHead | None:
        """Return the linear layer that gives the scores; None if they are not linear."""
        return StoredHead(self._rows, None if self._map is None else self._map.description)


def linear_scores(rows: Rows, features: Float[Any, "rows dim"]) -> Float[Any, "rows classes"]:
    """Return weight @ features + bias, as from the stored head."""
    xp = namespace(rows.weight)
    weight, bias = xp.astype(rows.weight, xp.float32), xp.astype(rows.bias, xp.float32)
    return as_type(features, xp.float32) @ weight.T + bias


BLOCK_VALUES = 2**23
"""Numbers in memory while a block is scored: 32 MB in float32."""


def evaluate(
    form: ClosedForm,
    features: FeatureRows,
    labels: Int[np.ndarray, " rows"],
    ends: Sequence[int],
    num_classes: int,
) -> Evaluation:
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
    return Evaluation(correct, correct_in_task, (mistakes,))


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

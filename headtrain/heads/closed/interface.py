"""The interface of closed forms over the stream.

Scores of a linear layer are computed in float32, as from a head file.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from clinit.headtrain.heads.array import FeatureRows, as_type, namespace
from clinit.headtrain.heads.closed.moments import FeatureMap
from clinit.headtrain.heads.linear import Rows
from clinit.headtrain.heads.statistics.class_statistics import ClassStatistics
from clinit.headtrain.heads.statistics.lambda_curve import LambdaCurve
from clinit.machine import Stopwatch
from clinit.observer import Observer, ignore


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
    observer: Observer = ignore
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

    def head(self) -> StoredHead:
        """Return the linear layer that gives the scores."""
        return StoredHead(self._rows, None if self._map is None else self._map.description)


def linear_scores(rows: Rows, features: Float[Any, "rows dim"]) -> Float[Any, "rows classes"]:
    """Return weight @ features + bias, as from the stored head."""
    xp = namespace(rows.weight)
    weight, bias = xp.astype(rows.weight, xp.float32), xp.astype(rows.bias, xp.float32)
    return as_type(features, xp.float32) @ weight.T + bias

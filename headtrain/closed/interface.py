"""What closed forms over the stream offer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

import numpy as np
from jaxtyping import Float, Int

from clinit.headtrain.feature_rows import FeatureRows
from clinit.headtrain.least_squares.lambda_curve import LambdaCurve
from clinit.headtrain.rows import Rows
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

"""The interface of closed forms over the stream.

Scores of a linear layer are computed in float32, as from a head file.

Counts, sums and Gram matrix of arriving rows, with classes that are added as they arrive.

Every row has weight 1. `ClassStatistics` weights rows by the counts of their classes, which are
unknown in a stream.

Random features: a fixed layer drawn from a seed, applied block by block.

    h = max(0, W^T f),    W ~ N(0, 1), no bias

Source: M. D. McDonnell, D. Gong, A. Parvaneh, E. Abbasnejad, A. van den Hengel, "RanPAC: random
projections and pre-trained models for continual learning", NeurIPS 2023.

Heads that are solved from the statistics of all classes seen: nearest mean, ridge, LDA.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import array_api_compat
import numpy as np
from jaxtyping import Bool, Float, Int

from clinit.headtrain.heads.array import (
    FeatureRows,
    as_type,
    beside,
    namespace,
    slices,
    take,
    to_numpy,
)
from clinit.headtrain.heads.linear import NEVER, Rows
from clinit.headtrain.heads.seeds import Draw, generator
from clinit.headtrain.heads.start.new_rows import discriminants
from clinit.headtrain.heads.statistics.class_statistics import ClassStatistics
from clinit.headtrain.heads.statistics.moments import MomentSums
from clinit.headtrain.heads.statistics.solve import LambdaCurve, least_squares_head
from clinit.machine import Stopwatch
from clinit.observer import Observer, Progressed, ignore

_DIAGONAL_BLOCK = 512


class ClassMoments(MomentSums):
    """n_c, S_c = sum of h over class c, and G = sum of h h^T over all rows, in float64."""

    @classmethod
    def like(cls, zeros: Float[Any, ...], width: int) -> ClassMoments:
        """Begin without classes and rows, in the library and on the device of `zeros`."""
        return cls.zeros(np.zeros(0), beside(zeros, np.zeros(width)))

    def grow(self, num_classes: int) -> None:
        """Add rows for classes that arrive."""
        self.counts = grown(self.counts, num_classes)
        self.weights = np.ones(num_classes)
        self.sums = grown(self.sums, num_classes)

    def add_mapped(
        self,
        features: FeatureRows,
        labels: Int[np.ndarray, " rows"],
        mapped: FeatureMap,
        observer: Observer = ignore,
    ) -> None:
        """Map rows block by block, and add them."""
        for block in slices(len(labels), mapped.block_rows):
            self.add(mapped(take(features, block)), labels[block])
            observer(Progressed("summing up rows", block.stop, len(labels)))

    def merge(self, other: ClassMoments) -> None:
        """Add the sums of other rows of the same classes, in place."""
        self.counts += other.counts
        self.sums += other.sums
        self.lower += other.lower


def grown(values: Any, num_classes: int) -> Any:
    """Append zeros for classes that arrive to an array with a row for each class."""
    xp, shape = namespace(values), (num_classes - values.shape[0], *values.shape[1:])
    more = xp.zeros(shape, dtype=values.dtype, device=array_api_compat.device(values))
    return xp.concat([values, more])


def plus_diagonal(matrix: Float[Any, "dim dim"], value: float) -> Float[Any, "dim dim"]:
    """Return matrix + value I with one copy, not three, of a matrix of perhaps a gigabyte."""
    system = matrix + 0.0
    for part in slices(system.shape[0], _DIAGONAL_BLOCK):
        system[part, part] += beside(system, value * np.eye(part.stop - part.start))
    return system


BLOCK_VALUES = 2**23
"""Mapped values that are computed at a time: 32 MB in float32."""


@dataclass(frozen=True, slots=True, eq=False)
class FeatureMap:
    """A fixed random layer, in float32."""

    seed: int
    weight: Float[Any, "dim width"]

    @classmethod
    def drawn(cls, zeros: Float[Any, " dim"], width: int, *, seed: int) -> FeatureMap:
        """Draw a layer, in the library and on the device of `zeros`."""
        random, shape = generator(seed, Draw.FEATURE_MAP), (zeros.shape[0], width)
        return cls(seed, beside(zeros, random.standard_normal(shape, dtype=np.float32)))

    @property
    def width(self) -> int:
        """Number of random features."""
        return int(self.weight.shape[1])

    @property
    def block_rows(self) -> int:
        """Number of rows that are mapped at a time."""
        return max(64, BLOCK_VALUES // self.width)

    def __call__(
        self, features: Float[Any, "rows dim"], columns: slice = slice(None)
    ) -> Float[Any, "rows width"]:
        """Return random features, or some columns, for rows on the device of the map."""
        xp = namespace(features)
        projected = as_type(features, xp.float32) @ self.weight[:, columns]
        return xp.maximum(projected, beside(projected, np.float32(0)))

    @property
    def description(self) -> dict[str, Any]:
        """The facts for a file: enough to draw the map again, and to verify it."""
        drawn = np.ascontiguousarray(to_numpy(self.weight), "<f4")
        return {
            "kind": "relu",
            "width": self.width,
            "input_dim": int(self.weight.shape[0]),
            "seed": self.seed,
            "member": 0,
            "sha256": hashlib.sha256(drawn.tobytes()).hexdigest(),
        }


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


@dataclass(frozen=True, slots=True, eq=False)
class Solution:
    """The lambda of a task and, if it was chosen from data, the error of each lambda."""

    lam: float | None = None
    curve: LambdaCurve | None = None


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
        features = features if self._map is None else self._map(features)
        rows, xp = self._rows, namespace(self._rows.weight)
        weight, bias = xp.astype(rows.weight, xp.float32), xp.astype(rows.bias, xp.float32)
        return as_type(features, xp.float32) @ weight.T + bias

    def head(self) -> tuple[Rows, Mapping[str, Any] | None]:
        """Return the linear layer that gives the scores, and a description of the map it reads."""
        return self._rows, None if self._map is None else self._map.description


Solve = Callable[[ClassStatistics, float], Rows]
"""Solves for a head over all classes; the second argument is lambda, which only `ridge` reads."""


def rule_out(head: Rows, has_data: Bool[np.ndarray, " classes"]) -> Rows:
    """For classes without data, set weights to 0 and biases so low that these classes never win."""
    xp = namespace(head.weight)
    present = beside(head.weight, has_data)
    weight = xp.where(present[:, None], head.weight, 0.0)
    return Rows(weight, xp.where(present, head.bias, NEVER))


def nearest_class_mean(statistics: ClassStatistics, lam: float) -> Rows:
    """Return (mu_c, -1/2 |mu_c|^2) for each class: the class with the nearest mean wins.

        -1/2 |h - mu_c|^2 = mu_c.h - 1/2 |mu_c|^2 - 1/2 |h|^2,

    and the last term is the same for all classes, so that the head is linear.

    Source: T. Mensink, J. Verbeek, F. Perronnin, G. Csurka, "Distance-based image
    classification: generalizing to new classes at near-zero cost", IEEE TPAMI 35(11), 2013.
    """
    means = statistics.class_means
    squares = namespace(means).sum(means**2, axis=1)
    return rule_out(Rows(means, -0.5 * squares), statistics.totals > 0)


def lda(statistics: ClassStatistics, lam: float) -> Rows:
    """Return the discriminant of each class, for equal priors."""
    return rule_out(discriminants(statistics), statistics.totals > 0)


SOLVED: Mapping[str, Solve] = {"ncm": nearest_class_mean, "ridge": least_squares_head, "lda": lda}
"""The solver of each method. `ridge` gives a class without data a row of zeros."""

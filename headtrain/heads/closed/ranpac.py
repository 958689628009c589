"""RanPAC: ridge regression on random ReLU features.

    h = max(0, W^T f),    G = sum h h^T,    Q = sum h y^T,    head = (G + lam I)^-1 Q

with W ~ N(0, 1), one-hot y and no bias. After each task, lambda is chosen from the rows of the task
only, as the authors do. Heads are fitted to four fifths of these rows, and the last fifth chooses
the head of the least squared error. The fifth consists of whole groups of rows that repeat each
other; the order of rows is drawn by the seed, while the authors' loader shuffles them. Lambdas for
which G + lam I is singular in double precision are not chosen. The adapter that RanPAC may train on
its first task is left out, because features are frozen here.

Source: M. D. McDonnell, D. Gong, A. Parvaneh, E. Abbasnejad, A. van den Hengel, "RanPAC: random
projections and pre-trained models for continual learning", NeurIPS 2023, Eqs. 4 to 6, Algorithm 1.

`RidgePath` solves this regression for many lambdas at once. With the random features h of all rows
to fit as the rows of H, and their one-hot labels Y, the head is

    B(lam) = (H^T H + lam I)^-1 H^T Y = H^T (H H^T + lam I)^-1 Y.

One eigendecomposition, of H^T H (width x width) or of H H^T (rows x rows), whichever is smaller,
gives the scores of held-out rows at any lambda for O(rows classes) per eigenvalue. H as a whole is
never in memory: with H^T H, held-out rows are scored block by block; with H H^T, which is summed
over blocks of columns, H has at most as many rows as columns.

Counts, sums and Gram matrix grow with the classes. Every row has weight 1: `ClassStatistics`
weights rows by the counts of their classes, which are unknown in a stream.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from clinit.errors import StatisticsError
from clinit.headtrain.heads.array import (
    Cholesky,
    FeatureRows,
    as_type,
    beside,
    namespace,
    select,
    slices,
    take,
    to_numpy,
)
from clinit.headtrain.heads.closed.methods import Arrival, ClosedForm, Solution, grown
from clinit.headtrain.heads.closed.settings import RanpacConfig
from clinit.headtrain.heads.groups import Labels, in_whole_groups
from clinit.headtrain.heads.linear import Rows
from clinit.headtrain.heads.seeds import Draw, generator
from clinit.headtrain.heads.statistics.moments import MomentSums, symmetric
from clinit.headtrain.heads.statistics.solve import LambdaCurve
from clinit.observer import Observer, Progressed, ignore

_DIAGONAL_BLOCK = 512


class ClassMoments(MomentSums):
    """n_c, S_c = sum of h over class c, and G = sum of h h^T over all rows, in float64."""

    @classmethod
    def like(cls, zeros: Float[Any, ...], width: int) -> ClassMoments:
        """Begin without classes and rows, in the library and on the device of `zeros`."""
        return cls.about(np.zeros(0), beside(zeros, np.zeros(width)))

    def grow(self, num_classes: int) -> None:
        """Add rows for classes that arrive."""
        self.counts = grown(self.counts, num_classes)
        self.weights = np.ones(num_classes)
        self.sums = grown(self.sums, num_classes)

    def add_mapped(
        self, features: FeatureRows, labels: Labels, mapped: FeatureMap, observer: Observer = ignore
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


LAMBDAS = tuple(float(f"1e{decade}") for decade in range(-8, 9))
"""The grid of RanPAC."""
HELD_OUT = 0.2


@dataclass(frozen=True, slots=True, eq=False)
class RidgePath:
    """Scores of held-out rows for any lambda: left (right / (eigenvalues + lam))."""

    left: Iterable[Float[Any, "_ rank"]]
    """Blocks of held-out rows, in their order, computed on demand."""
    right: Float[Any, "rank classes"]
    eigenvalues: Float[Any, " rank"]
    """Tiny eigenvalues may be negative by rounding."""

    @classmethod
    def of_moments(
        cls, moments: ClassMoments, start: int, judged: Iterable[Float[Any, "_ width"]]
    ) -> RidgePath:
        """Decompose the Gram matrix, O(width^3).

        Args:
            moments: Moments of the rows to fit, all of classes from `start` on.
            start: First class that scores are fitted for.
            judged: Mapped held-out rows, block by block.
        """
        xp = namespace(moments.lower)
        eigenvalues, basis = xp.linalg.eigh(symmetric(moments.lower))
        right = (moments.sums[start:, :] @ basis).T
        return cls((xp.astype(block, xp.float64) @ basis for block in judged), right, eigenvalues)

    @classmethod
    def of_rows(
        cls,
        feature_map: FeatureMap,
        fitted: Float[Any, "rows dim"],
        targets: Float[Any, "rows classes"],
        judged: Float[Any, "judged dim"],
    ) -> RidgePath:
        """Decompose the matrix of products of rows, O(rows^3)."""
        xp = namespace(fitted)
        step = max(1, BLOCK_VALUES // (fitted.shape[0] + judged.shape[0]))
        products, cross = 0.0, 0.0
        for columns in slices(feature_map.width, step):
            mapped = (feature_map(rows, columns) for rows in (fitted, judged))
            one, other = (xp.astype(each, xp.float64) for each in mapped)
            products = products + one @ one.T
            cross = cross + other @ one.T
        eigenvalues, basis = xp.linalg.eigh(products)
        return cls([cross @ basis], basis.T @ targets, eigenvalues)

    def curve(self, columns: Int[np.ndarray, " judged"]) -> LambdaCurve:
        """Return half the mean squared error at each lambda; can be called once.

        Args:
            columns: Class of each held-out row, as a column of the scores.
        """
        eigenvalues = namespace(self.right).maximum(self.eigenvalues, beside(self.right, 0.0))
        squares, judged = np.zeros(len(LAMBDAS)), 0
        for left in self.left:
            here = columns[judged : judged + left.shape[0]]
            judged += left.shape[0]
            targets = here[:, None] == np.arange(self.right.shape[1])
            for index, lam in enumerate(LAMBDAS):
                answers = to_numpy(left @ (self.right / (eigenvalues + lam)[:, None]))
                squares[index] += ((answers - targets) ** 2).sum()
        return LambdaCurve(LAMBDAS, tuple((squares / (2 * judged)).tolist()))


class Ranpac(ClosedForm):
    """The Gram matrix of the random features and their sums by class; memory O(M^2 + C M)."""

    def __init__(self, config: RanpacConfig, zeros: Float[Any, " dim"], *, seed: int) -> None:
        super().__init__(zeros)
        self._drawn = FeatureMap.drawn(zeros, config.width, seed=seed)
        self.feature_map = self._drawn.description
        self._lam, self._seed = config.lam, seed
        self._moments = ClassMoments.like(zeros, config.width)
        self.block_values = config.width

    def learn(self, arrival: Arrival) -> Solution:
        """Add the rows; choose lambda and solve, unless they belong to the base."""
        self._moments.grow(arrival.num_classes)
        curve = None
        if arrival.task > 0 and self._lam == "auto":
            curve = self._add_and_judge(arrival)
        else:
            with arrival.watch.phase("statistics"):
                self._moments.add_mapped(
                    arrival.features, arrival.labels, self._drawn, arrival.observer
                )
        if arrival.task == 0:
            return Solution()
        lam = self._choice(curve)
        with arrival.watch.phase("solve"):
            arrival.observer(Progressed("solving for the head", 0, 1))
            self.rows = self._solved(lam)
        return Solution(lam, curve)

    def scores(self, features: Float[Any, "rows dim"]) -> Float[Any, "rows classes"]:
        """Return the scores of the random features."""
        return super().scores(self._drawn(features))

    def _add_and_judge(self, arrival: Arrival) -> LambdaCurve | None:
        """Add the rows of a task; return the error of each lambda on the last fifth of them.

        Return None if the task has a single row.
        """
        labels, start = arrival.labels, int(arrival.labels.min(initial=arrival.num_classes))
        order = generator(self._seed, Draw.RIDGE, arrival.task).permutation(len(labels))
        groups = np.arange(len(labels)) if arrival.groups is None else arrival.groups

        def choose(firsts: Int[np.ndarray, " firsts"]) -> Int[np.ndarray, " chosen"]:
            first = order[np.isin(order, firsts)]
            return first[int((1 - HELD_OUT) * len(first)) :]

        held = in_whole_groups(groups, choose)[order]
        fitted, judged = order[~held], order[held]
        of_fitted, of_judged = (select(arrival.features, rows) for rows in (fitted, judged))
        by_gram = len(fitted) > self._drawn.width
        with arrival.watch.phase("statistics"):
            part = self._moments
            if by_gram:  # statistics of the rows to fit only
                part = ClassMoments.like(self.rows.bias, self._drawn.width)
                part.grow(arrival.num_classes)
            part.add_mapped(of_fitted, labels[fitted], self._drawn, arrival.observer)
        curve = None
        if len(fitted) and len(judged):
            with arrival.watch.phase("lambda"):
                arrival.observer(Progressed("choosing lambda", 0, 1))
                if by_gram:
                    blocks = slices(len(judged), self._drawn.block_rows)
                    mapped = (self._drawn(take(of_judged, block)) for block in blocks)
                    path = RidgePath.of_moments(part, start, mapped)
                else:  # at most as many rows to fit as random features: all fit into memory
                    rows = take(of_judged, slice(None))
                    targets = np.eye(arrival.num_classes - start)[labels[fitted] - start]
                    path = RidgePath.of_rows(
                        self._drawn, take(of_fitted, slice(None)), beside(rows, targets), rows
                    )
                curve = path.curve(labels[judged] - start)
        with arrival.watch.phase("statistics"):
            if by_gram:
                self._moments.merge(part)
            self._moments.add_mapped(of_judged, labels[judged], self._drawn, arrival.observer)
        return curve

    def _choice(self, curve: LambdaCurve | None) -> float:
        """Return lambda; if no row was held out, 1, or more if 1 is too small to solve."""
        if self._lam != "auto":
            return self._lam
        least = self._resolution()
        if curve is None:
            return max(1.0, least)
        errors = zip(curve.errors, curve.lams, strict=True)
        allowed = [(error, lam) for error, lam in errors if lam > least]
        if not allowed:
            raise self._singular(curve.lams[-1])
        return min(allowed)[1]

    def _solved(self, lam: float) -> Rows:
        try:
            if lam <= self._resolution():
                raise np.linalg.LinAlgError
            system = Cholesky.of(plus_diagonal(self._moments.lower, lam))
        except np.linalg.LinAlgError as error:
            raise self._singular(lam) from error
        weight = system.solve(self._moments.sums.T).T
        return Rows(weight, beside(weight, np.zeros(weight.shape[0])))

    def _resolution(self) -> float:
        """Return the size below which an eigenvalue of G may be a mere rounding error."""
        lower = self._moments.lower
        size = float(namespace(lower).linalg.trace(lower))
        return float(np.sqrt(self._drawn.width) * np.finfo(np.float64).eps) * size

    def _singular(self, lam: float) -> StatisticsError:
        return StatisticsError(
            f"the Gram matrix of {self._drawn.width:,} random features is singular at lambda ="
            f" {lam:g}, with {int(self._moments.counts.sum()):,} rows",
            remedy="Give a larger --ranpac-lambda, or leave it out to choose it automatically.",
        )

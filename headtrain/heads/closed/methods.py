"""Closed forms by their names: SLDA, SimpleCIL, RanPAC.

Deep SLDA: linear discriminants whose means and covariance are updated row by row.

For row t, of class c with n rows before it and running mean m:

    r = h - m,    (t + 1) S <- t S + t / (t + 1) r r^T,    m <- m + r / (n + 1),    t <- t + 1

(a new class starts at m = 0, as in the authors' code). A block of rows updates S by one product:
t S grows by sum_t t / (t + 1) r r^T. The base classes are learnt as a whole: their means, and their
covariance by oracle approximating shrinkage. Then, with e the shrinkage,

    L = [(1 - e) S + e I]^-1,    weight = L mu_c,    bias = -1/2 mu_c.(L mu_c).

Sources: T. L. Hayes, C. Kanan, "Lifelong machine learning with deep streaming linear discriminant
analysis", CVPR Workshops 2020, and the code of its authors; Y. Chen, A. Wiesel, Y. C. Eldar, A. O.
Hero, "Shrinkage algorithms for MMSE covariance estimation", IEEE TSP 58(10), 2010.

SimpleCIL predicts the class whose mean has the largest cosine with the feature.

    cos(h, mu_c) = h.u_c / |h|,    u_c = mu_c / |mu_c|,

and |h| is the same for all classes, so that a linear head with rows u_c and no bias gives the same
order.

Source: D.-W. Zhou, Z.-W. Cai, H.-J. Ye, D.-C. Zhan, Z. Liu, "Revisiting class-incremental learning
with pre-trained models: generalizability and adaptivity are all you need", IJCV 2025.

RanPAC: ridge regression on random ReLU features.

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
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from clinit.errors import StatisticsError
from clinit.headtrain.heads.array import (
    Cholesky,
    beside,
    float64_of,
    namespace,
    select,
    slices,
    take,
    to_numpy,
)
from clinit.headtrain.heads.closed.interface import (
    BLOCK_VALUES,
    Arrival,
    ClassMoments,
    ClosedForm,
    FeatureMap,
    Solution,
    grown,
    plus_diagonal,
    rule_out,
)
from clinit.headtrain.heads.closed.settings import RanpacConfig, SldaConfig
from clinit.headtrain.heads.groups import in_whole_groups
from clinit.headtrain.heads.linear import Rows
from clinit.headtrain.heads.seeds import Draw, generator
from clinit.headtrain.heads.start.new_rows import discriminants_of, towards_identity
from clinit.headtrain.heads.statistics.moments import add_by_class, add_products, cut, symmetric
from clinit.headtrain.heads.statistics.solve import LambdaCurve
from clinit.observer import Progressed


class Slda(ClosedForm):
    """Running class means and a running covariance; memory O(d^2 + C d)."""

    def __init__(self, config: SldaConfig, zeros: Float[Any, " dim"]) -> None:
        super().__init__(zeros)
        dim = zeros.shape[0]
        self._shrinkage = config.shrinkage
        self._counts = np.zeros(0, dtype=np.int64)
        self._means = self._rows.weight
        self._lower = beside(zeros, np.zeros((dim, dim))).T
        """t S; on the CPU only its lower half."""

    @property
    def covariance(self) -> Float[Any, "dim dim"]:
        """S."""
        return symmetric(self._lower) / max(1, int(self._counts.sum()))

    def learn(self, arrival: Arrival) -> Solution:
        """Update by the rows in their order; learn the base as a whole."""
        with arrival.watch.phase("statistics"):
            self._means = grown(self._means, arrival.num_classes)
            self._counts = grown(self._counts, arrival.num_classes)
            if arrival.task == 0:
                self._begin(arrival)
                return Solution()
            for rows, labels in cut(arrival.features, arrival.labels):
                self._stream(float64_of(rows), labels)
        with arrival.watch.phase("solve"):
            system = towards_identity(self.covariance, self._shrinkage)
            self._rows = rule_out(discriminants_of(self._means, system), self._counts > 0)
        return Solution()

    def _begin(self, arrival: Arrival) -> None:
        """Learn the base: class means, and the covariance about them with shrinkage."""
        for rows, labels in cut(arrival.features, arrival.labels):
            add_by_class(self._means, float64_of(rows), labels)
        self._counts = np.bincount(arrival.labels, minlength=arrival.num_classes)
        counts = np.maximum(self._counts, 1).astype(np.float64)
        self._means = self._means / beside(self._means, counts)[:, None]
        for rows, labels in cut(arrival.features, arrival.labels):
            of_class = beside(self._means, labels)
            centred = float64_of(rows) - namespace(rows).take(self._means, of_class, axis=0)
            self._lower = add_products(self._lower, centred)
        if total := int(self._counts.sum()):
            covariance = symmetric(self._lower) / total
            weight = oracle_weight(covariance, total)
            self._lower = total * towards_identity(covariance, weight, mean_variance(covariance))
            # The matrix is symmetric. Transposed into Fortran order, because BLAS adds in place
            # only then.
            self._lower = self._lower.T

    def _stream(self, rows: Float[Any, "rows dim"], labels: Int[np.ndarray, " rows"]) -> None:
        """Update covariance and means by a block of rows in their order."""
        xp = namespace(rows)
        seen = int(self._counts.sum()) + np.arange(len(labels))
        residuals, weights = [], []
        for label in np.unique(labels):
            places = np.flatnonzero(labels == label)
            own = xp.take(rows, beside(rows, places), axis=0)
            before = int(self._counts[label])
            # For each row, the sum of all earlier rows of its class.
            sums = xp.cumulative_sum(own, axis=0) - own + before * self._means[label, :]
            numbers = beside(rows, np.maximum(before + np.arange(len(places)), 1.0))
            residuals.append(own - sums / numbers[:, None])
            weights.append(seen[places] / (seen[places] + 1))
            total = sums[-1, :] + own[-1, :]
            self._means[label, :] = total / (before + len(places))
            self._counts[label] += len(places)
        scale = beside(rows, np.sqrt(np.concatenate(weights)))[:, None]
        self._lower = add_products(self._lower, xp.concat(residuals) * scale)


def oracle_weight(covariance: Float[Any, "dim dim"], rows: int) -> float:
    """Return the weight of the mean variance in oracle approximating shrinkage.

    Eq. 23 of Chen et al.

    Args:
        covariance: Sum of outer products of centred rows, divided by `rows`.
        rows: Number of rows.
    """
    mean = mean_variance(covariance)
    square = float(namespace(covariance).mean(covariance**2))
    apart = (rows + 1) * (square - mean**2 / covariance.shape[0])
    return 1.0 if apart == 0 else min(1.0, (square + mean**2) / apart)


def mean_variance(covariance: Float[Any, "dim dim"]) -> float:
    """Return the mean of the diagonal."""
    return float(namespace(covariance).linalg.trace(covariance)) / int(covariance.shape[0])


class SimpleCil(ClosedForm):
    """Sums of the rows of each class; memory O(C d)."""

    def __init__(self, zeros: Float[Any, " dim"]) -> None:
        super().__init__(zeros)
        self._sums = self._rows.weight
        self._has_data = np.zeros(0, dtype=bool)

    def learn(self, arrival: Arrival) -> Solution:
        """Add the sums of the classes that arrive; scale the sums of all classes to length 1."""
        with arrival.watch.phase("statistics"):
            self._sums = grown(self._sums, arrival.num_classes)
            self._has_data = grown(self._has_data, arrival.num_classes)
            for rows, labels in cut(arrival.features, arrival.labels):
                add_by_class(self._sums, float64_of(rows), labels)
                self._has_data[labels] = True
        with arrival.watch.phase("solve"):
            xp = namespace(self._sums)
            norms = xp.sqrt(xp.sum(self._sums**2, axis=1))
            units = self._sums / xp.where(norms > 0, norms, 1.0)[:, None]
            self._rows = rule_out(Rows(units, xp.zeros_like(norms)), self._has_data)
        return Solution()


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
        drawn = FeatureMap.drawn(zeros, config.width, seed=seed)
        super().__init__(zeros, drawn)
        self._lam, self._seed, self._drawn = config.lam, seed, drawn
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
            self._rows = self._solved(lam)
        return Solution(lam, curve)

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
                part = ClassMoments.like(self._rows.bias, self._drawn.width)
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

"""Closed forms over the stream, and two of them by name: SLDA, SimpleCIL.

Scores of a linear layer are computed in float32, as from a head file. Heads that are solved from
the statistics of all classes seen are closed forms, too: nearest mean, ridge, LDA.

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
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import array_api_compat
import numpy as np
from jaxtyping import Bool, Float, Int

from clinit.headtrain.heads.array import FeatureRows, as_type, beside, float64_of, namespace
from clinit.headtrain.heads.closed.settings import SldaConfig
from clinit.headtrain.heads.linear import NEVER, Rows
from clinit.headtrain.heads.start.new_rows import discriminants, discriminants_of, towards_identity
from clinit.headtrain.heads.statistics.class_statistics import ClassStatistics
from clinit.headtrain.heads.statistics.moments import add_by_class, add_products, cut, symmetric
from clinit.headtrain.heads.statistics.solve import LambdaCurve, least_squares_head
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


@dataclass(frozen=True, slots=True, eq=False)
class Solution:
    """The lambda of a task and, if it was chosen from data, the error of each lambda."""

    lam: float | None = None
    curve: LambdaCurve | None = None


class ClosedForm:
    """Statistics of all rows seen, and the classifier that follows from them; linear by default."""

    block_values = 0
    """Numbers in memory per scored row, from which callers choose the size of blocks."""
    feature_map: Mapping[str, Any] | None = None
    """Description of the map that `rows` read; None if they read the features themselves."""

    def __init__(self, zeros: Float[Any, " dim"]) -> None:
        """Begin without classes; `zeros` sets library, device and width of the features."""
        self.rows = Rows(zeros[None, :][:0, :], zeros[:0])
        """The linear layer that gives the scores."""

    def learn(self, arrival: Arrival) -> Solution:
        """Add the rows of classes that arrive, and solve unless they belong to the base."""
        raise NotImplementedError

    def scores(self, features: Float[Any, "rows dim"]) -> Float[Any, "rows classes"]:
        """Return the score of each class seen so far; the largest wins."""
        rows, xp = self.rows, namespace(self.rows.weight)
        weight, bias = xp.astype(rows.weight, xp.float32), xp.astype(rows.bias, xp.float32)
        return as_type(features, xp.float32) @ weight.T + bias


def grown(values: Any, num_classes: int) -> Any:
    """Append zeros for classes that arrive to an array with a row for each class."""
    xp, shape = namespace(values), (num_classes - values.shape[0], *values.shape[1:])
    more = xp.zeros(shape, dtype=values.dtype, device=array_api_compat.device(values))
    return xp.concat([values, more])


Solve = Callable[[ClassStatistics, float], Rows]
"""Solves for a head over all classes; the second argument is lambda, which only `ridge` reads."""


def rule_out(head: Rows, has_data: Bool[np.ndarray, " classes"]) -> Rows:
    """For classes without data, set weights to 0 and biases so low that these classes never win."""
    xp = namespace(head.weight)
    present = beside(head.weight, has_data)
    return Rows(xp.where(present[:, None], head.weight, 0.0), xp.where(present, head.bias, NEVER))


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


class Slda(ClosedForm):
    """Running class means and a running covariance; memory O(d^2 + C d)."""

    def __init__(self, config: SldaConfig, zeros: Float[Any, " dim"]) -> None:
        super().__init__(zeros)
        dim = zeros.shape[0]
        self._shrinkage = config.shrinkage
        self._counts = np.zeros(0, dtype=np.int64)
        self._means = self.rows.weight
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
            self.rows = rule_out(discriminants_of(self._means, system), self._counts > 0)
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
        self._sums = self.rows.weight
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
            self.rows = rule_out(Rows(units, xp.zeros_like(norms)), self._has_data)
        return Solution()

"""Least-square heads from class statistics.

The minimiser of Eq. 1 of the paper (M. Y. Harun, C. Kanan, "A good start matters: enhancing
continual learning with data-driven weight initialization", 2025),

    L(W) = 1/2 Ave |W z - y|^2 + lam/2 |W|_F^2,    z = (h, 1),

is its Eq. 3, W_LS = Ave[y z^T] (Ave[z z^T] + lam I)^-1 with the same Ave in both factors; for
class-balanced averages Ave[y z^T] = M^T / C, where the columns of M are the class means of z.
Written for W = (V, b) about the mean mu of h
(the terms of z z^T that are as large as |mu|^2 then cancel on paper, not in floating point):

    V = (T + rho p mu^T) (Sigma_T + lam I + rho mu mu^T)^-1,    b = (p - V mu) / (1 + lam),
    T = Ave[y (h - mu)^T],    p = Ave[y],    rho = lam / (1 + lam).

The term rho mu mu^T is kept out of the system that is solved, because it would drown Sigma_T if the
mean is large. By the Sherman-Morrison formula, with A = Sigma_T + lam I,

    b = (1 - rho) g,    V = V_0 + rho g a^T,    V_0 = T A^-1,    a = A^-1 mu,
    g = (p - V_0 mu) / (1 + rho mu.a).

This form avoids p - V mu, which loses all its digits if the mean is large.

The bias is penalised too, as in the paper: hence rho. In smaller units, features need longer rows,
but not larger biases, so that V depends on the unit. Rows of which the bias is held at 0, rho = 1,
do not: they are the limit of large features. A class without rows gets a row of zeros.

Choose the ridge of a least-square head from data.

The measure is the leave-one-out error in closed form (`leave_one_out`), with W_-i the head solved
without row i:

    1/2 sum_i w_i |W_-i z_i - y_i|^2.

If only the statistics of N rows are left, generalised cross-validation replaces it (G. H. Golub,
M. Heath, G. Wahba, "Generalized cross-validation as a method for choosing a good ridge parameter",
Technometrics 21(2), 1979): the error on the rows themselves / (1 - f / N)^2, f = 1 + sum_j
e_j / (e_j + lam) with e the eigenvalues of Sigma_T.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from numbers import Real
from typing import Any, Literal

import numpy as np
from jaxtyping import Float, Int, Num

from clinit.errors import StatisticsError
from clinit.headtrain.heads.array import (
    Cholesky,
    FeatureRows,
    as_array,
    beside,
    float64_of,
    like,
    namespace,
    take,
    to_numpy,
    torch_stream,
)
from clinit.headtrain.heads.groups import Groups, Labels, one_of_each
from clinit.headtrain.heads.linear import Rows
from clinit.headtrain.heads.statistics.class_statistics import ClassStatistics, Weighting
from clinit.headtrain.heads.statistics.leave_one_out import Answers, Unit, blocks_of


def bias_share(lam: float, holds_bias: bool) -> float:
    """Return rho."""
    return 1.0 if holds_bias else lam / (1 + lam)


def least_squares_head(
    statistics: ClassStatistics,
    lam: float,
    classes: slice = slice(None),
    *,
    holds_bias: bool = False,
) -> Rows:
    """Solve for W_LS = (weight, bias) by a Cholesky factorisation, O(d^3 + C d^2).

    Args:
        statistics: Statistics of the whole set; on the GPU if they are CuPy arrays.
        lam: Ridge of Eq. 1, added to averages: the usual ridge of sums is N lam.
        classes: The rows to return.
        holds_bias: Whether biases are 0.

    Raises:
        StatisticsError: If Sigma_T + lam I is singular to working precision.
    """
    _check(lam, statistics)
    xp = namespace(statistics.gram)
    covariance, mean = statistics.total_covariance, statistics.mean
    target = statistics.target_covariance[classes, :]
    right = xp.concat([target, mean[None, :]])  # V_0 and a in one solve
    solved = Cholesky.ridged(covariance, lam).solve(right.T).T
    free, direction = solved[:-1, :], solved[-1, :]
    shares, rho = statistics.shares[classes], bias_share(lam, holds_bias)
    return _with_bias(free, direction, mean, beside(covariance, shares), rho)


def _with_bias(free: Any, direction: Any, mean: Any, shares: Any, rho: float) -> Rows:
    """Return (V, b) from V_0, a, mu, p and rho."""
    gap = (shares - free @ mean) / (1 + rho * float(mean @ direction))
    return Rows(free + rho * namespace(free).linalg.outer(gap, direction), (1 - rho) * gap)


@dataclass(frozen=True, eq=False)
class LambdaPath:
    """W_LS for any number of lambdas, after one eigendecomposition Sigma_T = U diag(e) U^T.

    In this basis A is diag(e + lam): W_LS costs O(C d) per lambda, and O(C d^2) to leave the basis.
    """

    statistics: ClassStatistics
    eigenvalues: Float[Any, " dim"]
    """Ascending; negative eigenvalues, which come from rounding, are set to zero."""
    basis: Float[Any, "dim dim"]
    """U, a column for each eigenvalue."""
    shared: dict[Any, dict[Any, Any]] = field(default_factory=dict, repr=False)
    """Results for heads that share this path."""

    @classmethod
    def of(cls, statistics: ClassStatistics) -> LambdaPath:
        """Decompose the total covariance, O(d^3)."""
        xp = namespace(statistics.gram)
        eigenvalues, basis = xp.linalg.eigh(statistics.total_covariance)
        return cls(statistics, xp.maximum(eigenvalues, beside(eigenvalues, 0.0)), basis)

    @cached_property
    def _mean(self) -> Float[Any, " dim"]:
        """The mean in the eigenbasis."""
        return self.basis.T @ self.statistics.mean

    @cached_property
    def _target(self) -> Float[Any, "classes dim"]:
        """T."""
        return self.statistics.target_covariance

    def head(self, lam: float) -> Rows:
        """Return W_LS at one lambda.

        Raises:
            StatisticsError: If Sigma_T + lam I is singular to working precision.
        """
        within = self._within(lam, slice(None))
        return Rows(within.weight @ self.basis.T, within.bias)

    def coordinates(self, features: Float[Any, "rows dim"]) -> Float[Any, "rows dim"]:
        """Return rows about the mean in the eigenbasis, for `left_out`."""
        return (features - self.statistics.mean) @ self.basis

    def left_out(
        self,
        coordinates: Float[Any, "rows dim"],
        labels: Int[np.ndarray, " all"],
        lam: float,
        unit: Unit,
        classes: slice = slice(None),
        *,
        shares: Float[np.ndarray, " all"] | None = None,
        with_bias: bool = True,
        holds_bias: bool = False,
    ) -> Float[Any, "rows classes"]:
        """Return the score of each row from W_LS solved without this row, or without its group.

        O(rows d) per class and lambda, and O(rows n d) for n rows of a unit.

        Args:
            coordinates: Result of `coordinates` for these rows.
            labels: Classes of all rows of the statistics.
            lam: Ridge.
            unit: A block of rows, divided into units that are computed together, and the groups
                that are left out as a whole.
            classes: The head rows whose scores are returned.
            shares: Weights of all rows; None: all weights are 1.
            with_bias: Whether scores include the bias.
            holds_bias: Whether biases are 0.
        """
        within, mean = self._within(lam, classes, holds_bias=holds_bias), self._mean
        direction = mean / (self.eigenvalues + lam)
        start, stop, _ = classes.indices(self.statistics.num_classes)
        rows, own = unit.all_rows, labels[unit.all_rows]
        return Answers(
            scores=coordinates @ within.weight.T + (within.weight @ mean + within.bias),
            target=np.where((own >= start) & (own < stop), own - start, -1),
            weights=self.statistics.weights[own] * (1.0 if shares is None else shares[rows]),
            white=coordinates / namespace(mean).sqrt(self.eigenvalues + lam),
            overlaps=coordinates @ direction,
            mean_overlap=float(mean @ direction),
            rho=bias_share(lam, holds_bias),
            bias=None if with_bias else within.bias,
        ).without(unit)

    def of_other_rows(
        self,
        coordinates: Float[Any, "rows dim"],
        variances: Float[Any, " dim"],
        lam: float,
        classes: slice,
        *,
        with_bias: bool,
        holds_bias: bool,
    ) -> tuple[Float[Any, "rows classes"], Float[np.ndarray, " classes"]]:
        """Return the scores of rows, and what the score of the only row of a class owes to it.

        `variances` are those of images of one class.
        """
        within = self._within(lam, classes, holds_bias=holds_bias)
        offset = within.weight @ self._mean + (within.bias if with_bias else 0.0)
        system, xp = self.eigenvalues + lam, namespace(self.basis)
        centred = self.statistics.centred_class_means[classes, :] @ self.basis
        square = to_numpy(xp.sum(centred**2 / system, axis=1))
        trace = float(xp.sum(variances / system))
        owed = owed_by_least_squares(self.statistics.shares[classes], square, trace)
        return coordinates @ within.weight.T + offset, owed

    def variances(self, covariance: Float[Any, "dim dim"]) -> Float[Any, " dim"]:
        """Return the variances along the eigenvectors."""
        return namespace(self.basis).sum(self.basis * (covariance @ self.basis), axis=0)

    def _within(self, lam: float, classes: slice, *, holds_bias: bool = False) -> Rows:
        """Return W_LS with its weights in the eigenbasis."""
        _check(lam, self.statistics)
        mean, system = self._mean, self.eigenvalues + lam
        free, rho = self._target[classes, :] @ self.basis / system, bias_share(lam, holds_bias)
        shares = beside(mean, self.statistics.shares[classes])
        return _with_bias(free, mean / system, mean, shares, rho)


def owed_by_least_squares(
    shares: Float[np.ndarray, " classes"], squares: Float[np.ndarray, " classes"], trace: float
) -> Float[np.ndarray, " classes"]:
    """Return p (1 - p - p d.A^-1 d) tr(A^-1 S) from p, d.A^-1 d, the trace (`left_out`)."""
    return np.asarray(shares * (1 - shares - shares * squares) * trace)


def resolution(statistics: ClassStatistics) -> float:
    """Return the size below which an eigenvalue of the total covariance may be mere rounding."""
    size = float(namespace(statistics.gram).linalg.trace(statistics.gram))
    return statistics.dim * float(np.finfo(np.float64).eps) * size


def _check(lam: Any, statistics: ClassStatistics) -> None:
    """Refuse a lambda that is not a finite number >= 0, or leaves the system singular."""
    value = float(lam) if isinstance(lam, Real) else math.nan
    if not 0 <= value < math.inf:
        raise ValueError(f"lam is {lam!r}, expected a finite number >= 0")
    if value > resolution(statistics):
        return
    xp = namespace(statistics.gram)
    eigenvalues = xp.linalg.eigvalsh(statistics.total_covariance)
    flat = int(xp.sum(xp.astype(eigenvalues + value <= resolution(statistics), xp.int64)))
    if flat:
        raise StatisticsError(
            f"the least squares are singular at lam = {value:g}: {int(statistics.totals.sum()):,}"
            f" rows do not vary along {flat:,} of {statistics.dim:,} directions",
            remedy="Use lam > 0 (the paper: 0.05), more rows, or leave out constant features.",
        )


def least_squares(
    features: Num[Any, "rows dim"],
    labels: Int[Any, " rows"],
    *,
    num_classes: int | None = None,
    lam: float = 0.05,
    weighting: Weighting = "class",
) -> Rows:
    """Return the linear head that predicts one-hot labels with the least squared error.

    It minimises 1/2 Ave |weight h + bias - onehot(y)|^2 + lam/2 (|weight|^2 + |bias|^2) in
    one pass over the features, in float64, without one-hot targets: O(rows dim^2) time and
    O(dim^2 + classes dim) memory in addition to the features.

    Its outputs estimate class probabilities. To join a head trained with cross entropy, its rows
    must be scaled: see `clinit.headtrain.heads.start.initialise.initialise`.

    Args:
        features: A NumPy array, a torch tensor or a CuPy array of any float type. CUDA tensors
            stay on their device (this needs CuPy).
        labels: Integers in [0, num_classes), of any of these libraries.
        num_classes: Rows of the head; default: the largest label + 1. A class without a sample
            gets a row of zeros and does not count.
        lam: Ridge, >= 0, added to an average: scikit-learn's `alpha` divided by the number of
            rows. The paper uses 0.05 (ConvNeXt) and 1e-4 (ResNet).
        weighting: Kind of Ave: `class`, the mean over classes of the means over their rows, or
            `sample`, the mean over rows.

    Returns:
        A value with `.weight` (classes, dim) and `.bias` (classes,), float64 arrays of the
        library and on the device of `features`.

    Raises:
        ValueError: If an argument has a wrong shape, type or range.
        StatisticsError: If a feature is not finite, or if lam = 0 and the system is singular.

    Example:
        >>> import numpy as np
        >>> features = np.array([[0.0, 1.0], [0.0, 2.0], [3.0, 0.0], [4.0, 0.0]])
        >>> head = least_squares(features, np.array([0, 0, 1, 1]), lam=1e-3)
        >>> (features @ head.weight.T + head.bias).argmax(axis=1).tolist()
        [0, 0, 1, 1]
    """
    with torch_stream(features):
        array, numbers = as_array(features), to_numpy(as_array(labels))
        if array.dtype.kind not in "fiu" or array.ndim != 2:
            found = f"{array.dtype} of shape {array.shape}"
            raise ValueError(f"features are {found}, expected real numbers of shape (rows, dim)")
        if numbers.dtype.kind not in "iu" or numbers.ndim != 1 or (numbers < 0).any():
            found = f"{numbers.dtype} of shape {numbers.shape}"
            raise ValueError(f"labels are {found}, expected non-negative integers of shape (rows,)")
        statistics = ClassStatistics.of(
            array, numbers.astype(np.int64), num_classes=num_classes, weighting=weighting
        )
        head = least_squares_head(statistics, lam)
        return Rows(like(head.weight, features), like(head.bias, features))


LambdaCriterion = Literal[
    "leave-one-out loss", "leave-one-out error", "generalised cross-validation", "held-out error"
]


@dataclass(frozen=True, slots=True)
class LambdaCurve:
    """Error or loss of each lambda, in ascending order of lambda."""

    lams: tuple[float, ...]
    errors: tuple[float, ...]
    measure: LambdaCriterion = "held-out error"

    @property
    def best(self) -> float:
        """The lambda of the least error."""
        return self.lams[int(np.argmin(self.errors))]


def default_lams(statistics: ClassStatistics) -> tuple[float, ...]:
    """Return half decades from 1e-6 to 1e2 times the mean eigenvalue, as round numbers."""
    xp = namespace(statistics.gram)
    mean_eigenvalue = float(xp.linalg.trace(statistics.total_covariance)) / statistics.dim
    centre = round(np.log10(mean_eigenvalue)) if mean_eigenvalue > 0 else 0
    lams = [float(f"{m}e{decade}") for decade in range(centre - 6, centre + 3) for m in (1, 3)]
    return tuple(lams[:-1])


def squared_error(head: Rows, judge: ClassStatistics) -> float:
    """Return 1/2 Ave |W h + b - y|^2 over the rows of the statistics.

    With T = Ave[y (h - mu)^T] and p = Ave[y], it is

        1/2 [tr(W Sigma_T W^T) + |W mu + b|^2 - 2 tr(W T^T) - 2 p.(W mu + b) + sum p].
    """
    xp = namespace(judge.gram)
    shares = beside(judge.gram, judge.shares)
    at_mean = head.weight @ judge.mean + head.bias
    spread = xp.sum((head.weight @ judge.total_covariance) * head.weight)
    overlap = xp.sum(head.weight * judge.target_covariance)
    offset = at_mean @ at_mean - 2 * (shares @ at_mean) + xp.sum(shares)
    return float(spread - 2 * overlap + offset) / 2


LeftOutScores = Callable[[float], np.ndarray]
"""The scores (rows, classes) of rows without themselves, by lambda."""
MOST_ROWS = 8192
"""Maximum number of rows that are left out to compare lambdas; they are evenly spaced in the order
of classes."""


def leave_one_out_curve(
    features: FeatureRows, labels: Labels, statistics: ClassStatistics, groups: Groups | None = None
) -> LambdaCurve:
    """Return the leave-one-out error of W_LS at half decades of lambda.

    Args:
        features: Of shape (rows, dim).
        labels: Their classes.
        statistics: Statistics of these rows.
        groups: Groups of rows that repeat each other and are left out together. In a class with
            such rows, the weights of the remaining rows are not raised to make up for rows left
            out. None: no row repeats another.
    """
    drawn, scores = left_out_scores(features, labels, statistics, groups)
    return error_curve(scores, labels[drawn], statistics)


def error_curve(scores: LeftOutScores, labels: Labels, statistics: ClassStatistics) -> LambdaCurve:
    """Return the leave-one-out error at half decades of lambda, of `left_out_scores`."""
    weights, lams = statistics.weights[labels], default_lams(statistics)
    truth = np.eye(statistics.num_classes)[labels]
    squares = [((scores(lam) - truth) ** 2).sum(axis=1) for lam in lams]
    errors = [float(weights @ each / weights.sum() / 2) for each in squares]
    return LambdaCurve(lams, tuple(errors), "leave-one-out error")


def left_out_scores(
    features: FeatureRows, labels: Labels, statistics: ClassStatistics, groups: Groups | None = None
) -> tuple[Int[np.ndarray, " drawn"], LeftOutScores]:
    """Return numbers of rows, and a function of lambda: the score of each without itself.

    The arguments are those of `leave_one_out_curve`.
    """
    path, order = LambdaPath.of(statistics), np.argsort(labels, kind="stable")
    spaced = np.linspace(0, len(order) - 1, num=min(len(order), MOST_ROWS)).astype(np.int64)
    drawn = np.sort(order[spaced])
    reweighted = np.full(statistics.num_classes, statistics.weighting == "class")
    counts = np.bincount(one_of_each(labels, groups), minlength=len(reweighted))
    reweighted &= np.bincount(labels, minlength=len(reweighted)) == counts
    blocks, places = blocks_of(labels, drawn, reweighted, counts, groups)
    coordinates = [path.coordinates(float64_of(take(features, block.all_rows))) for block in blocks]

    def scores(lam: float) -> Float[np.ndarray, "drawn classes"]:
        parts = [
            to_numpy(path.left_out(rows, labels, lam, block))
            for block, rows in zip(blocks, coordinates, strict=True)
        ]
        return np.asarray(np.concatenate(parts)[places])

    return drawn, scores


def generalised_curve(statistics: ClassStatistics) -> LambdaCurve:
    """Return the generalised cross-validation of W_LS at half decades of lambda."""
    path, lams = LambdaPath.of(statistics), default_lams(statistics)
    shares = [effective_rows(path, lam) / max(1, int(statistics.totals.sum())) for lam in lams]
    errors = tuple(
        squared_error(path.head(lam), statistics) / (1 - min(share, 1 - 1e-6)) ** 2
        for lam, share in zip(lams, shares, strict=True)
    )
    return LambdaCurve(lams, errors, "generalised cross-validation")


def effective_rows(path: LambdaPath, lam: float) -> float:
    """Return f, the number of rows that a solution can reproduce at will."""
    return 1.0 + float(to_numpy(path.eigenvalues / (path.eigenvalues + lam)).sum())

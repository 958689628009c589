"""Neural collapse, and D_LS: the excess loss of a head over the least-square head.

Let mu_c be the class means, mu_G their mean, Z the matrix of mu_c - mu_G, Sigma_W the within-class
and Sigma_B = Z Z^T / C the between-class covariance, all class-balanced, W and b the head,
and E = (I - 1 1^T / C) / sqrt(C - 1) the Gram matrix of a simplex ETF, of Frobenius norm one:

    NC1 = tr(Sigma_W pinv(Sigma_B)) / C         NC3 = | W Z / |W Z| - E |
    NC2 = | W W^T / |W W^T| - E |               NC4 = | b + W mu_G |

Sources: V. Papyan, X. Y. Han, D. L. Donoho, "Prevalence of neural collapse during the terminal
phase of deep learning training", PNAS 117(40), 2020; Z. Zhu et al., "A geometric analysis of
neural collapse with unconstrained features", NeurIPS 2021; and the paper's Appendix.

NC1 is computed from the singular values of Z, because Sigma_B has at most rank C - 1, and less if
the features have a null direction (as after a LayerNorm). Singular values below the rounding of the
features' type are cut:

    cut = 4 (sqrt(d) + sqrt(C)) r eps / sqrt(12) sqrt(mean over classes of 1 / n_c)

r is the root mean square of the features, and eps the distance from 1 to the next number of the
type, so r eps / sqrt(12) is the deviation of a rounded feature. The largest singular value of a
matrix of such errors is about sqrt(d) + sqrt(C) times the deviation of a mean; the factor 4 leaves
room for the rounding within the network. NC2 and NC3 use W without centring.

    D_LS(W) = 1/2 tr[(W - W_LS) S (W - W_LS)^T],    S = Ave[z z^T] + lam I,    z = (h, 1)

is the paper's Eq. 4 and, exactly, L(W) - L(W_LS) for the loss L of its Eq. 1 (X. Y. Han,
V. Papyan, D. L. Donoho, "Neural collapse under MSE loss", ICLR 2022). It grows with the square
of the scale of W, so heads of different losses are compared by the relative value

    D_LS(W) / (1/2 tr[W S W^T])

and, because a head of large scale is near 1 in it, by a value without any scale: with the inner
product <W, V> = tr[W S V^T], 1 - cos^2 of the angle between W and W_LS. It is the least of
D_LS(c W) / D_LS(0) over c.

With d = W - W_LS = (v, a), computed about the mean mu of h:

    tr[d S d^T] = tr[v Sigma_T v^T] + |v mu + a|^2 + lam (|v|^2 + |a|^2).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float

from clinit.headtrain.heads.array import beside, namespace, to_numpy
from clinit.headtrain.heads.linear import Rows
from clinit.headtrain.heads.statistics.class_statistics import ClassStatistics
from clinit.headtrain.heads.statistics.solve import least_squares_head

EPS = {"float16": 2.0**-10, "tf32": 2.0**-10, "bfloat16": 2.0**-7} | {
    "float32": 2.0**-23,
    "float64": 2.0**-52,
}
"""Distance from 1 to the next number, by type."""

LARGEST = 1e70
"""Larger entries of a head are taken for infinite, because NC2 needs their fourth power."""


@dataclass(frozen=True, slots=True)
class NeuralCollapse:
    """The four metrics over the classes that have rows; 0 is full collapse."""

    nc1: float
    """NaN if all class means are equal; the other metrics are NaN if the head or its squares are
    not finite."""
    nc2: float
    nc3: float
    nc4: float
    nc2_floor: float
    """The least possible NC2 for this width and number of classes."""
    nc3_floor: float
    classes: int
    dim: int
    rank: int
    """Directions that the class means span, of at most min(dim, classes - 1)."""
    cut: float
    """Singular values of the class means that are not above this value are left out of NC1,
    relative to the largest."""


def neural_collapse(
    statistics: ClassStatistics, head: Rows, *, dtype: str = "float16"
) -> NeuralCollapse:
    """Return the metrics of a head on features; classes without rows are left out.

    Args:
        statistics: Class-balanced statistics of at least two classes.
        head: One row for each class of `statistics`, in arrays of the same library.
        dtype: Coarsest type in which the features were computed or stored, a name of `EPS`.
    """
    xp, present = namespace(statistics.gram), np.flatnonzero(statistics.totals)
    rows = beside(statistics.gram, present)
    weight, bias = xp.take(head.weight, rows, axis=0), xp.take(head.bias, rows)
    weight, bias = xp.astype(weight, xp.float64), xp.astype(bias, xp.float64)
    centred = xp.take(statistics.centred_class_means, rows, axis=0)
    basis, singular, cut = mean_directions(statistics, centred, EPS[dtype])
    spread = xp.sum(basis * (statistics.within_covariance @ basis), axis=0)  # by direction
    # E has C - 1 equal eigenvalues; a matrix of rank d < C - 1 can match d of them.
    share = min(1.0, statistics.dim / (len(present) - 1))
    floor = math.sqrt(2 - 2 * math.sqrt(share))
    if not (xp.max(xp.abs(weight)) < LARGEST and xp.max(xp.abs(bias)) < LARGEST):
        weight, bias = xp.full_like(weight, math.nan), xp.full_like(bias, math.nan)
    # C of Sigma_B cancels 1 / C. Class means that are all the same separate nothing.
    nc1 = max(0.0, float(xp.sum(spread / singular**2))) if singular.shape[0] else math.nan
    nc2, nc3 = (distance_to_etf(weight @ each.T) for each in (weight, centred))
    nc4 = float(xp.linalg.vector_norm(bias + weight @ statistics.mean))
    sizes = {"classes": len(present), "dim": statistics.dim, "rank": singular.shape[0]}
    return NeuralCollapse(nc1, nc2, nc3, nc4, nc2_floor=floor, nc3_floor=floor, cut=cut, **sizes)


def mean_directions(
    statistics: ClassStatistics, centred: Float[Any, "present dim"], eps: float
) -> tuple[Float[Any, "dim rank"], Float[Any, " rank"], float]:
    """Return the left singular vectors and singular values of Z above rounding, and the cut."""
    xp, present = namespace(centred), np.flatnonzero(statistics.totals)
    basis, singular, _ = xp.linalg.svd(centred.T, full_matrices=False)
    values = to_numpy(singular)[: len(present) - 1]  # the largest first
    squares = float(xp.linalg.trace(statistics.total_covariance) + xp.sum(statistics.mean**2))
    each = eps * math.sqrt(squares / statistics.dim / 12 * np.mean(1 / statistics.totals[present]))
    most = 4 * (math.sqrt(statistics.dim) + math.sqrt(len(present))) * each
    cut = max(most / values[0], 4 * EPS["float64"] * max(centred.shape)) if values[0] > 0 else 1.0
    rank = int((values > cut * values[0]).sum())
    return basis[:, :rank], singular[:rank], cut


def distance_to_etf(gram: Float[Any, "classes classes"]) -> float:
    """Return | gram / |gram| - E |; 1 for a matrix of zeros, NaN if an entry is not finite."""
    xp, classes = namespace(gram), gram.shape[0]
    if not xp.all(xp.isfinite(gram)):
        return math.nan
    norm = float(xp.linalg.matrix_norm(gram))
    etf = (np.eye(classes) - 1 / classes) / math.sqrt(classes - 1)
    normalised = gram / norm if norm > 0 else gram
    return float(xp.linalg.matrix_norm(normalised - beside(gram, etf)))


@dataclass(frozen=True, slots=True, eq=False)
class Deviation:
    """Deviation of a head from W_LS over the classes that have rows."""

    per_class: Float[np.ndarray, " classes"]
    """D_LS by head row; NaN for a class without rows."""
    size: float
    """1/2 tr[W S W^T]."""
    least: float
    """1/2 tr[W_LS S W_LS^T]."""
    lam: float

    @property
    def d_ls(self) -> float:
        """D_LS, as in the paper."""
        return float(np.nansum(self.per_class))

    @property
    def relative(self) -> float:
        """D_LS relative to the size of the head; NaN for a head of zeros."""
        return self.d_ls / self.size if self.size > 0 else float("nan")

    @property
    def angle(self) -> float:
        """1 - cos^2 of the angle between W and W_LS; NaN if one of them is zero."""
        norms = math.sqrt(self.size * self.least)
        cosine = (self.size + self.least - self.d_ls) / (2 * norms) if norms > 0 else math.nan
        return max(0.0, 1 - cosine**2)


def deviation(statistics: ClassStatistics, head: Rows, *, lam: float) -> Deviation:
    """Return the deviation of a head with a row for each class of `statistics`.

    Its arrays are of the library of `statistics`.

    Raises:
        StatisticsError: If lam = 0 and the least squares are singular.
    """
    best = least_squares_head(statistics, lam)
    xp = namespace(statistics.gram)
    head = Rows(xp.astype(head.weight, xp.float64), xp.astype(head.bias, xp.float64))
    difference = Rows(head.weight - best.weight, head.bias - best.bias)
    absent = statistics.totals == 0
    per_class = np.where(absent, np.nan, half_square(statistics, difference, lam=lam))
    size, least = (
        float(half_square(statistics, each, lam=lam)[~absent].sum()) for each in (head, best)
    )
    return Deviation(per_class, size, least, lam)


def half_square(
    statistics: ClassStatistics, rows: Rows, *, lam: float
) -> Float[np.ndarray, " classes"]:
    """Return 1/2 w S w^T for each row w = (weight, bias)."""
    xp, weight = namespace(statistics.gram), rows.weight
    at_mean = weight @ statistics.mean + rows.bias
    ridge = lam * (xp.sum(weight**2, axis=1) + rows.bias**2)
    spread = xp.sum((weight @ statistics.total_covariance) * weight, axis=1)
    return to_numpy(spread + at_mean**2 + ridge) / 2

"""Choose the ridge from data: the error of W_LS on held-out rows, for many lambdas.

A fifth of the rows of each class is held out at random. One eigendecomposition gives W_LS of the
remaining rows for all lambdas. Its squared error on the held-out rows, averaged as in the solution
and over only the head rows that will be written, is a function of the statistics of the held-out
rows:

    1/2 Ave |V h + b - y|^2 = 1/2 [tr(V Sigma_T V^T) + |V mu + b|^2
                                   - 2 tr(V T^T) - 2 p.(V mu + b) + sum p],

with T = Ave[y (h - mu)^T] and p = Ave[y] restricted to these head rows.

The ridge of a whole least-square head is chosen by the leave-one-out error, in closed form
(`leave_one_out`), with W_-i the head solved without row i:

    1/2 sum_i w_i |W_-i z_i - y_i|^2.

If only the statistics of N rows are left, generalised cross-validation replaces it (G. H. Golub,
M. Heath, G. Wahba, "Generalized cross-validation as a method for choosing a good ridge parameter",
Technometrics 21(2), 1979): the error on the rows themselves / (1 - f / N)^2, f = 1 + sum_j
e_j / (e_j + lam) with e the eigenvalues of Sigma_T.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from jaxtyping import Bool, Int

from clinit.errors import StatisticsError
from clinit.headtrain.heads.array import (
    FeatureRows,
    beside,
    float64_of,
    namespace,
    select,
    take,
    to_numpy,
)
from clinit.headtrain.heads.groups import draw_per_class, one_of_each
from clinit.headtrain.heads.linear import Rows
from clinit.headtrain.heads.statistics.class_statistics import ClassStatistics, Weighting, count
from clinit.headtrain.heads.statistics.leave_one_out import blocks_of
from clinit.headtrain.heads.statistics.solve import LambdaPath

Measure = Literal[
    "held-out error", "leave-one-out loss", "leave-one-out error", "generalised cross-validation"
]
HELD_OUT = 0.2
ALL = slice(None)


@dataclass(frozen=True, slots=True)
class LambdaCurve:
    """Error or loss of each lambda, in ascending order of lambda."""

    lams: tuple[float, ...]
    errors: tuple[float, ...]
    measure: Measure = "held-out error"

    @property
    def best(self) -> float:
        """The lambda of the least error."""
        return self.lams[int(np.argmin(self.errors))]


def lambda_curve(
    features: FeatureRows,
    labels: Int[np.ndarray, " rows"],
    num_classes: int,
    *,
    classes: slice = ALL,
    weighting: Weighting = "class",
    groups: Int[np.ndarray, " rows"] | None = None,
) -> LambdaCurve:
    """Return the held-out error of W_LS over the head rows `classes`.

    Args:
        features: Features of buffer and new task together, of shape (rows, dim).
        labels: In [0, num_classes).
        num_classes: Number of classes of W_LS, including classes without rows.
        classes: The head rows that will be written; only their error counts.
        weighting: Kind of average, in the solution and in the error.
        groups: Groups of rows that repeat each other; a group is held out as a whole, and counts
            as one row.

    Raises:
        StatisticsError: If none of `classes` has two rows that do not repeat each other.
    """
    held = held_out(labels, 0, groups)
    if not count(labels[held], num_classes)[classes].any():
        raise StatisticsError(
            "lambda cannot be chosen: no class has two rows, one to fit and one to hold out",
            remedy="Give a number (the paper: 0.05) instead of `auto`.",
        )

    def summed(rows: Int[np.ndarray, " _"]) -> ClassStatistics:
        return ClassStatistics.of(
            select(features, rows), labels[rows], num_classes=num_classes, weighting=weighting,
            groups=None if groups is None else groups[rows],
        )  # fmt: skip

    fitted, judge = summed(np.flatnonzero(~held)), summed(np.flatnonzero(held))
    path, lams = LambdaPath.of(fitted), default_lams(fitted)
    errors = tuple(held_out_error(path.head(lam, classes), judge, classes) for lam in lams)
    return LambdaCurve(lams, errors)


def default_lams(statistics: ClassStatistics) -> tuple[float, ...]:
    """Return half decades from 1e-6 to 1e2 times the mean eigenvalue, as round numbers."""
    xp = namespace(statistics.gram)
    mean_eigenvalue = float(xp.linalg.trace(statistics.total_covariance)) / statistics.dim
    centre = round(np.log10(mean_eigenvalue)) if mean_eigenvalue > 0 else 0
    lams = [float(f"{m}e{decade}") for decade in range(centre - 6, centre + 3) for m in (1, 3)]
    return tuple(lams[:-1])


def held_out(
    labels: Int[np.ndarray, " rows"], seed: int, groups: Int[np.ndarray, " rows"] | None = None
) -> Bool[np.ndarray, " rows"]:
    """Mark a fifth of the rows, or groups, of each class: at least one if the class has two."""
    if groups is not None:
        _, places = np.unique(groups, return_inverse=True)
        return held_out(one_of_each(labels, groups), seed)[places]
    counts = np.bincount(labels)
    quotas = np.where(counts >= 2, np.maximum(1, (HELD_OUT * counts).astype(np.int64)), 0)
    return draw_per_class(labels, quotas, seed)


def held_out_error(head: Rows, judge: ClassStatistics, classes: slice) -> float:
    """Return 1/2 Ave |V h + b - y|^2 over the rows of `judge` and the outputs `classes`."""
    xp = namespace(judge.gram)
    shares = beside(judge.gram, judge.shares[classes])
    at_mean = head.weight @ judge.mean + head.bias
    spread = xp.sum((head.weight @ judge.total_covariance) * head.weight)
    overlap = xp.sum(head.weight * judge.target_covariance[classes, :])
    offset = at_mean @ at_mean - 2 * (shares @ at_mean) + xp.sum(shares)
    return float(spread - 2 * overlap + offset) / 2


MOST_ROWS = 8192
"""Maximum number of rows that are left out to compare lambdas; they are evenly spaced in the order
of classes."""


def leave_one_out_curve(
    features: FeatureRows,
    labels: Int[np.ndarray, " rows"],
    statistics: ClassStatistics,
    lams: tuple[float, ...] | None = None,
    groups: Int[np.ndarray, " rows"] | None = None,
) -> LambdaCurve:
    """Return the leave-one-out error of W_LS at each lambda.

    Args:
        features: Of shape (rows, dim).
        labels: Their classes.
        statistics: Statistics of these rows.
        lams: Ascending; default: half decades around the mean eigenvalue of the total covariance.
        groups: Groups of rows that repeat each other and are left out together. In a class with
            such rows, the weights of the remaining rows are not raised to make up for rows left
            out. None: no row repeats another.
    """
    path = LambdaPath.of(statistics)
    lams = default_lams(statistics) if lams is None else lams
    order = np.argsort(labels, kind="stable")
    spaced = np.linspace(0, len(order) - 1, num=min(len(order), MOST_ROWS)).astype(np.int64)
    drawn = np.sort(order[spaced])
    reweighted = np.full(statistics.num_classes, statistics.weighting == "class")
    if groups is not None:
        reweighted &= np.bincount(labels, minlength=len(reweighted)) == np.bincount(
            one_of_each(labels, groups), minlength=len(reweighted)
        )
    blocks, places = blocks_of(labels, drawn, reweighted, groups)
    coordinates = [path.coordinates(float64_of(take(features, block.all_rows))) for block in blocks]
    weights = statistics.weights[labels[drawn]]
    truth = np.eye(statistics.num_classes)[labels[drawn]]
    errors = []
    for lam in lams:
        parts = [
            to_numpy(path.left_out(rows, labels, lam, block))
            for block, rows in zip(blocks, coordinates, strict=True)
        ]
        gaps = np.concatenate(parts)[places] - truth
        errors.append(float(weights @ (gaps**2).sum(axis=1) / weights.sum() / 2))
    return LambdaCurve(lams, tuple(errors), "leave-one-out error")


def generalised_curve(statistics: ClassStatistics) -> LambdaCurve:
    """Return the generalised cross-validation of W_LS at half decades of lambda."""
    path, lams = LambdaPath.of(statistics), default_lams(statistics)
    shares = [effective_rows(path, lam) / max(1, int(statistics.totals.sum())) for lam in lams]
    errors = tuple(
        held_out_error(path.head(lam), statistics, ALL) / (1 - min(share, 1 - 1e-6)) ** 2
        for lam, share in zip(lams, shares, strict=True)
    )
    return LambdaCurve(lams, errors, "generalised cross-validation")


def effective_rows(path: LambdaPath, lam: float) -> float:
    """Return f, the number of rows that a solution can reproduce at will."""
    return 1.0 + float(to_numpy(path.eigenvalues / (path.eigenvalues + lam)).sum())

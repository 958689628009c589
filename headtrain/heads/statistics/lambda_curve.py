"""Choose the ridge of a least-square head from data.

The measure is the leave-one-out error in closed form (`leave_one_out`), with W_-i the head solved
without row i:

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
from jaxtyping import Int

from clinit.headtrain.heads.array import (
    FeatureRows,
    beside,
    float64_of,
    namespace,
    take,
    to_numpy,
)
from clinit.headtrain.heads.groups import one_of_each
from clinit.headtrain.heads.linear import Rows
from clinit.headtrain.heads.statistics.class_statistics import ClassStatistics
from clinit.headtrain.heads.statistics.leave_one_out import blocks_of
from clinit.headtrain.heads.statistics.solve import LambdaPath

Measure = Literal[
    "leave-one-out loss", "leave-one-out error", "generalised cross-validation", "held-out error"
]


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
        squared_error(path.head(lam), statistics) / (1 - min(share, 1 - 1e-6)) ** 2
        for lam, share in zip(lams, shares, strict=True)
    )
    return LambdaCurve(lams, errors, "generalised cross-validation")


def effective_rows(path: LambdaPath, lam: float) -> float:
    """Return f, the number of rows that a solution can reproduce at will."""
    return 1.0 + float(to_numpy(path.eigenvalues / (path.eigenvalues + lam)).sum())

"""Choose the ridge of a whole least-square head by leaving rows out: exactly, or on average.

Where the rows are there, by the error of what the head answers for each row without it, in closed
form (`leave_one_out`):

    1/2 sum_i w_i |W_-i z_i - y_i|^2.

Where only sums over rows were kept, by generalised cross-validation, which puts the mean of all
leverages in place of each, for averages over rows:

    1/2 Ave |W z - y|^2 / (1 - df / N)^2,    df = tr[(Ave z z^T + lam I)^-1 Ave z z^T].

With Sigma_T = U diag(e) U^T, m = U^T mu, a_j = m_j / (e_j + lam) and rho = lam / (1 + lam), as in
`leave_one_out`,

    df = sum_j e_j / (e_j + lam) + 1 - rho (1 + sum_j e_j a_j^2) / (1 + rho m.a).

Source: G. H. Golub, M. Heath, G. Wahba, "Generalized cross-validation as a method for choosing a
good ridge parameter", Technometrics 21(2), 1979.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from clinit.headtrain.array import namespace, to_numpy
from clinit.headtrain.feature_rows import FeatureRows, take
from clinit.headtrain.least_squares.lambda_curve import (
    ALL,
    LambdaCurve,
    default_lams,
    held_out_error,
)
from clinit.headtrain.least_squares.leave_one_out import blocks_of
from clinit.headtrain.least_squares.moments import widen
from clinit.headtrain.least_squares.solve import LambdaPath
from clinit.headtrain.least_squares.statistics import ClassStatistics

MOST_ROWS = 8192
"""Rows that are left out to compare lambdas, evenly spread over those sorted by class."""


def leave_one_out_curve(
    features: FeatureRows,
    labels: Int[np.ndarray, " rows"],
    statistics: ClassStatistics,
    lams: tuple[float, ...] | None = None,
) -> LambdaCurve:
    """Return the leave-one-out error of W_LS at each lambda.

    Args:
        features: Of shape (rows, dim).
        labels: Their classes.
        statistics: Those of these rows.
        lams: Ascending; default: half decades around the mean eigenvalue of the total covariance.
    """
    path = LambdaPath.of(statistics)
    lams = default_lams(statistics) if lams is None else lams
    order = np.argsort(labels, kind="stable")
    spaced = np.linspace(0, len(order) - 1, num=min(len(order), MOST_ROWS)).astype(np.int64)
    drawn = np.sort(order[spaced])
    reweighted = np.full(statistics.num_classes, statistics.weighting == "class")
    blocks, places = blocks_of(labels, drawn, reweighted)
    coordinates = [
        path.coordinates(_float64(take(features, block.reshape(-1)))) for block in blocks
    ]
    weights = statistics.weights[labels[drawn]]
    truth = np.eye(statistics.num_classes)[labels[drawn]]
    errors = []
    for lam in lams:
        parts = _answers(path, blocks, coordinates, labels, lam)
        gaps = np.concatenate(list(parts))[places] - truth
        errors.append(float(weights @ (gaps**2).sum(axis=1) / weights.sum() / 2))
    return LambdaCurve(lams, tuple(errors), "leave-one-out error")


def generalised_curve(
    statistics: ClassStatistics, lams: tuple[float, ...] | None = None
) -> LambdaCurve:
    """Return the generalised cross-validation of W_LS at each lambda.

    Args:
        statistics: With averages over rows.
        lams: As in `leave_one_out_curve`.

    Raises:
        ValueError: If the averages are over classes.
    """
    if statistics.weighting != "sample":
        raise ValueError("generalised cross-validation needs averages over rows")
    path, rows = LambdaPath.of(statistics), int(statistics.totals.sum())
    xp, eigenvalues = namespace(path.basis), path.eigenvalues
    mean = path.basis.T @ statistics.mean
    lams = default_lams(statistics) if lams is None else lams
    errors = []
    for lam in lams:
        rho, direction = lam / (1 + lam), mean / (eigenvalues + lam)
        spread = 1 + float(xp.sum(eigenvalues * direction**2))
        centred = float(xp.sum(eigenvalues / (eigenvalues + lam)))
        freedom = centred + 1 - rho * spread / (1 + rho * float(mean @ direction))
        error = held_out_error(path.head(lam), statistics, ALL)
        errors.append(error / (1 - freedom / rows) ** 2)
    return LambdaCurve(lams, tuple(errors), "generalised cross-validation")


def _answers(
    path: LambdaPath,
    blocks: list[Int[np.ndarray, "_ _"]],
    coordinates: list[Float[Any, "_ dim"]],
    labels: Int[np.ndarray, " rows"],
    lam: float,
) -> Iterator[Float[np.ndarray, "_ classes"]]:
    for block, rows in zip(blocks, coordinates, strict=True):
        together = block.shape[1]
        yield to_numpy(path.left_out(rows, labels[block.reshape(-1)], lam, together=together))


def _float64(rows: Any) -> Any:
    return namespace(rows).astype(widen(rows), namespace(rows).float64)

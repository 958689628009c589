"""Ridge regression without a bias on mapped rows, for many lambdas at once.

    W(lam) = (H^T H + lam I)^-1 H^T Y = H^T (H H^T + lam I)^-1 Y

One eigendecomposition, of H^T H (width x width) or of H H^T (rows x rows), whichever is smaller,
then gives the answers for other rows at any lambda for O(rows classes) per eigenvalue. In the
second case the product is summed over blocks of columns, so that the mapped rows never exist as
a whole.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from clinit.headtrain.array import beside, namespace, to_numpy
from clinit.headtrain.closed.class_moments import ClassMoments
from clinit.headtrain.closed.feature_map import BLOCK_VALUES, FeatureMap
from clinit.headtrain.least_squares.lambda_curve import LambdaCurve
from clinit.headtrain.least_squares.moments import symmetric

LAMBDAS = tuple(float(f"1e{decade}") for decade in range(-8, 9))
"""The grid of RanPAC."""


@dataclass(frozen=True, slots=True, eq=False)
class RidgePath:
    """The answers for some rows are left (right / (eigenvalues + lam))."""

    left: Float[Any, "judged rank"]
    right: Float[Any, "rank classes"]
    eigenvalues: Float[Any, " rank"]

    @classmethod
    def of_moments(
        cls, moments: ClassMoments, start: int, judged: Float[Any, "judged width"]
    ) -> RidgePath:
        """Decompose the Gram matrix, O(width^3).

        Args:
            moments: Of the rows to fit, each of a class from `start` on.
            start: First class that is regressed on.
            judged: Mapped rows to answer for.
        """
        xp = namespace(moments.lower)
        eigenvalues, basis = xp.linalg.eigh(symmetric(moments.lower))
        right = (moments.sums[start:, :] @ basis).T
        return cls(xp.astype(judged, xp.float64) @ basis, right, _not_negative(eigenvalues))

    @classmethod
    def of_rows(
        cls,
        feature_map: FeatureMap,
        fitted: Float[Any, "rows dim"],
        targets: Float[Any, "rows classes"],
        judged: Float[Any, "judged dim"],
    ) -> RidgePath:
        """Decompose the products of rows with each other, O(rows^3)."""
        xp = namespace(fitted)
        step = max(1, BLOCK_VALUES // (fitted.shape[0] + judged.shape[0]))
        products, cross = 0.0, 0.0
        for first in range(0, feature_map.width, step):
            columns = slice(first, min(first + step, feature_map.width))
            one, other = (
                xp.astype(feature_map(rows, columns), xp.float64) for rows in (fitted, judged)
            )
            products = products + one @ one.T
            cross = cross + other @ one.T
        eigenvalues, basis = xp.linalg.eigh(products)
        return cls(cross @ basis, basis.T @ targets, _not_negative(eigenvalues))

    def answers(self, lam: float) -> Float[Any, "judged classes"]:
        """Return what the head of one lambda answers."""
        return self.left @ (self.right / (self.eigenvalues + lam)[:, None])

    def curve(
        self, columns: Int[np.ndarray, " judged"], lams: Sequence[float] = LAMBDAS
    ) -> LambdaCurve:
        """Return half the mean squared error, and the accuracy, at each lambda.

        Args:
            columns: Class of each row that is judged, as a column of the answers.
            lams: Ascending.
        """
        errors, accuracies = [], []
        for lam in lams:
            answers = to_numpy(self.answers(lam))
            right = answers.argmax(axis=1) == columns
            answers[np.arange(len(columns)), columns] -= 1
            errors.append(float((answers**2).sum() / (2 * len(columns))))
            accuracies.append(float(right.mean()))
        return LambdaCurve(tuple(lams), tuple(errors), accuracies=tuple(accuracies))


def _not_negative(eigenvalues: Float[Any, " rank"]) -> Float[Any, " rank"]:
    """Set to zero what rounding has made negative."""
    return namespace(eigenvalues).maximum(eigenvalues, beside(eigenvalues, 0.0))

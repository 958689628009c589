"""Rows of linear discriminant analysis with shrinkage, as in Deep SLDA.

    L = [(1 - e) Sigma_W + e I]^-1,    weight = L mu_c,    bias = -1/2 mu_c.(L mu_c),    e = 1e-4

Source: T. L. Hayes, C. Kanan, "Lifelong machine learning with deep streaming linear
discriminant analysis", CVPR Workshops 2020, Eqs. 1 to 3. Sigma_W is the class-balanced
within-class covariance over buffer and new task (theirs averages over rows: `weighting`).
"""

from __future__ import annotations

from typing import Any

import numpy as np
from jaxtyping import Float

from clinit.headtrain.array import beside, namespace, solve_positive_definite
from clinit.headtrain.init.new_classes import NewClasses
from clinit.headtrain.least_squares.statistics import ClassStatistics
from clinit.headtrain.rows import Rows

SHRINKAGE = 1e-4


def lda_rows(data: NewClasses, statistics: ClassStatistics) -> Rows:
    """Return the discriminants of the new classes, for equal priors."""
    return discriminants(statistics, slice(data.start, data.stop))


def discriminants(statistics: ClassStatistics, classes: slice = slice(None)) -> Rows:
    """Return the discriminants of `classes`, for equal priors."""
    return discriminants_of(statistics.class_means[classes, :], shrunk(statistics))


def discriminants_of(means: Float[Any, "classes dim"], covariance: Float[Any, "dim dim"]) -> Rows:
    """Return the discriminants of classes with these means and this covariance.

    Raises:
        numpy.linalg.LinAlgError: If it is not positive definite to working precision.
    """
    weight = solve_positive_definite(covariance, means.T).T
    return Rows(weight, -0.5 * namespace(weight).sum(weight * means, axis=1))


def shrunk(statistics: ClassStatistics) -> Float[Any, "dim dim"]:
    """Return (1 - e) Sigma_W + e I."""
    return towards_identity(statistics.within_covariance, SHRINKAGE)


def towards_identity(
    covariance: Float[Any, "dim dim"], weight: float, size: float = 1.0
) -> Float[Any, "dim dim"]:
    """Return (1 - weight) covariance + weight size I."""
    system = (1 - weight) * covariance
    return system + beside(system, weight * size * np.eye(covariance.shape[0]))

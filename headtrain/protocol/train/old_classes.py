"""Statistics of earlier classes, and rows that are drawn from them.

With n_c rows of class c, their mean mu_c and, shared by all classes, the covariance within them,

    Sigma = Ave_c (1 / n_c) sum_{i in c} (h_i - mu_c)(h_i - mu_c)^T / Ave_c (1 - 1 / n_c),

an unbiased estimate if all classes have the same covariance. These are C d + d^2 numbers. A row of
class c is drawn as mu_c + A z with A A^T = Sigma, z ~ N(0, I).

A set of rows is drawn in pairs mu_c + A z, mu_c - A z, so that the mean of the drawn rows of a
class is mu_c exactly. If there are at least d pairs, the z of all classes are whitened together:
the within-class covariance of the drawn rows is then Sigma exactly, and least squares, LDA and
D_LS of the drawn rows match the statistics, whatever the seed.

Sources: G. Zhang, L. Wang, G. Kang, L. Chen, Y. Wei, "SLCA: slow learner with classifier alignment
for continual learning on a pre-trained model", ICCV 2023 (rows from N(mu_c, Sigma_c)); the pairs
are antithetic variates (J. M. Hammersley, K. W. Morton, 1956).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import scipy.linalg
from jaxtyping import Float, Int

from clinit.headtrain.heads.array import to_numpy
from clinit.headtrain.heads.statistics.class_statistics import ClassStatistics
from clinit.headtrain.protocol.stream.buffer import drawn_per_class

LEADING = 16
"""The leading 1/16 of the eigenvectors of Ave z z^T are kept exactly."""


@dataclass(frozen=True, eq=False)
class OldClasses:
    """Statistics of the earlier classes with training rows, in float64 on the host."""

    labels: Int[np.ndarray, " classes"]
    """Head rows of the classes, ascending."""
    means: Float[np.ndarray, "classes dim"]
    root: Float[np.ndarray, "dim dim"]
    """A, symmetric."""
    second: Float[np.ndarray, "dim dim"]
    """Ave h h^T over all rows of the classes, each class counting the same."""

    @classmethod
    def of(cls, statistics: ClassStatistics) -> OldClasses:
        """Derive the fields from class-balanced statistics of all rows of these classes."""
        labels, freedom = np.flatnonzero(statistics.totals), statistics.freedom
        means, within = statistics.class_means, to_numpy(statistics.within_covariance)
        mean = to_numpy(statistics.mean)
        return cls(
            labels=labels,
            means=to_numpy(means)[labels],
            root=root(within / freedom if freedom else 0 * within),
            second=to_numpy(statistics.total_covariance) + np.outer(mean, mean),
        )

    @cached_property
    def leading(self) -> tuple[Float[np.ndarray, "dim_and_1 directions"], float]:
        """P and rho with P P^T + rho I close to Ave z z^T, z = (h, 1), over all rows.

        P contains the scaled eigenvectors of the largest eigenvalues; rho is the mean of all other
        eigenvalues.
        """
        mean = self.means.mean(axis=0)
        of_z = np.block([[self.second, mean[:, None]], [mean, 1.0]])
        size = len(of_z)
        kept = -(-size // LEADING)
        values, vectors = scipy.linalg.eigh(of_z, subset_by_index=(size - kept, size - 1))
        rest = (np.trace(of_z) - values.sum()) / (size - kept)
        return vectors * np.sqrt(np.maximum(values - rest, 0.0)), float(rest)

    @property
    def numbers(self) -> int:
        """Number of stored numbers: C d + d^2."""
        return self.means.size + self.root.size

    def draw(self, random: np.random.Generator) -> tuple[np.ndarray, Int[np.ndarray, " rows"]]:
        """Draw equally many rows of each class; return them (rows, dim), in float32, and labels."""
        classes, dim = self.means.shape
        rows = paired_rows(self.means, self.root, drawn_per_class(classes, dim), random)
        return rows.reshape(-1, dim), np.repeat(self.labels, rows.shape[1])


def paired_rows(
    means: Float[np.ndarray, "classes dim"],
    root: Float[np.ndarray, "dim dim"],
    rows_per_class: int,
    random: np.random.Generator,
) -> Float[np.ndarray, "classes rows dim"]:
    """Draw rows of all classes.

    Args:
        means: Means of the classes.
        root: Symmetric root of the shared covariance.
        rows_per_class: Number of rows, which is rounded up to an even number.
        random: Generator of the draws.
    """
    classes, dim = means.shape
    pairs = -(-rows_per_class // 2)
    noise = whitened(random.standard_normal((classes * pairs, dim)))
    offsets = (noise @ root).reshape(classes, pairs, dim)
    centres = means.astype(np.float64)[:, None, :]
    return np.concatenate([centres + offsets, centres - offsets], axis=1).astype(np.float32)


def whitened(noise: Float[np.ndarray, "pairs dim"]) -> Float[np.ndarray, "pairs dim"]:
    """Return the rows transformed to second moment I; unchanged if fewer than `dim`."""
    pairs, dim = noise.shape
    if pairs < dim:
        return noise
    factor = scipy.linalg.cholesky(noise.T @ noise / pairs, lower=True)
    return np.asarray(scipy.linalg.solve_triangular(factor, noise.T, lower=True).T)


def root(covariance: Float[np.ndarray, "dim dim"]) -> Float[np.ndarray, "dim dim"]:
    """Return the symmetric root of a covariance; eigenvalues that rounding made negative are 0."""
    values, vectors = scipy.linalg.eigh(covariance)
    return np.asarray((vectors * np.sqrt(np.maximum(values, 0.0))) @ vectors.T)

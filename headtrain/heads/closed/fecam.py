"""FeCAM: squared Mahalanobis distance to each class, by a correlation matrix per class.

    S_c <- S_c + alpha1 v I + alpha2 o (1 - I),    v, o: means of S_c on and off the diagonal
    P_c = S_c, its rows and columns divided by the roots of its diagonal
    score_c = -(x - m_c)^T P_c^-1 (x - m_c)

The authors have two programs. If the first features seen are nowhere negative, as after ReLU:

    x = u(h^beta),    S_c = covariance of h^beta,    m_c = u((mean of h)^beta),    shrunk twice

and otherwise x = u(h), S_c = covariance of x, m_c = mean of x, shrunk once; u(a) = a / |a|, and
covariances of n_c rows are divided by n_c - 1.

A class of one image, or of equal images, has no covariance of its own. Its S_c is the covariance of
all rows about their class means, pooled over the classes seen so far that have a covariance, or the
identity if no class has one.

Source: D. Goswami, Y. Liu, B. Twardowski, J. van de Weijer, "FeCAM: exploiting the heterogeneity
of class distributions in exemplar-free continual learning", NeurIPS 2023, Eqs. 5 to 9, and the code
of its authors: alpha = (1, 1) for networks that end in ReLU, (1, 0) for transformers.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from jaxtyping import Float

from clinit.errors import StatisticsError
from clinit.headtrain.heads.array import Cholesky, as_type, beside, namespace, take
from clinit.headtrain.heads.closed.interface import Arrival, ClosedForm, Solution
from clinit.headtrain.heads.closed.moments import grown
from clinit.headtrain.heads.closed.settings import FecamConfig
from clinit.headtrain.heads.groups import by_class
from clinit.headtrain.heads.linear import NEVER
from clinit.headtrain.heads.statistics.moments import add_products, symmetric
from clinit.observer import Progressed


class Fecam(ClosedForm):
    """A mean and a matrix for each class; memory O(C d^2)."""

    def __init__(self, config: FecamConfig, zeros: Float[Any, " dim"]) -> None:
        super().__init__(zeros)
        dim, xp = zeros.shape[0], namespace(zeros)
        self._config = config
        self._is_after_relu: bool | None = None
        """Whether no feature of the first rows is negative; None before any row."""
        self._means = xp.astype(self._rows.weight, xp.float32)
        self._whitenings: dict[int, Float[Any, "dim dim"]] = {}
        """L^-1 with P = L L^T, in float32, for each class with its own covariance."""
        self._pooled = beside(zeros, np.zeros((dim, dim))).T
        """Scatter about class means, summed over classes; on the CPU only its lower half."""
        self._degrees = 0
        """Degrees of freedom of the scatter: number of rows minus number of classes."""
        self._shared_by: list[int] = []
        """Classes with rows, but without a covariance."""
        self._shared = beside(zeros, np.eye(dim, dtype=np.float32))
        """L^-1 of the classes `_shared_by`."""
        self.block_values = 4 * dim

    def learn(self, arrival: Arrival) -> Solution:
        """Compute means and covariances of the classes that arrive.

        Raises:
            StatisticsError: If a shrunk covariance is not positive definite.
        """
        with arrival.watch.phase("statistics"):
            self._means = grown(self._means, arrival.num_classes)
            classes = by_class(arrival.labels)
            for number, rows in enumerate(classes, start=1):
                label = int(arrival.labels[rows[0]])
                if not self._add(label, take(arrival.features, rows)):
                    self._shared_by.append(label)
                arrival.observer(Progressed("covariances of classes", number, len(classes)))
        if arrival.task and self._shared_by and self._degrees:
            with arrival.watch.phase("solve"):
                self._shared = self._whitening(symmetric(self._pooled) / self._degrees)
        return Solution()

    def scores(self, features: Float[Any, "rows dim"]) -> Float[Any, "rows classes"]:
        """Return minus the squared distances."""
        rows = _unit(self._powers(features))
        xp = namespace(rows)
        found = beside(rows, np.full((rows.shape[0], self._means.shape[0]), NEVER, np.float32))
        for label, whitening in self._whitenings.items():
            means = self._means[label : label + 1, :]
            found[:, label] = -_distances(whitening, rows, means)[:, 0]
        if self._shared_by:
            means = xp.take(self._means, beside(rows, np.array(self._shared_by)), axis=0)
            distances = _distances(self._shared, rows, means)
            for column, label in enumerate(self._shared_by):
                found[:, label] = -distances[:, column]
        return found

    def head(self) -> None:
        """Return None, because the distances are quadratic in the features."""

    def _add(self, label: int, features: Float[Any, "rows dim"]) -> bool:
        """Learn a class; return whether it has a covariance."""
        xp = namespace(features)
        if self._is_after_relu is None:
            self._is_after_relu = bool(xp.min(features) >= 0)
        rows = xp.astype(self._powers(features), xp.float64)
        if self._is_after_relu:
            whole = xp.mean(as_type(features, xp.float64), axis=0, keepdims=True)
            mean = _unit(self._powers(whole))[0, :]
        else:
            rows = _unit(rows)
            mean = xp.mean(rows, axis=0)
        self._means[label, :] = xp.astype(mean, xp.float32)
        centred = rows - xp.mean(rows, axis=0)
        scatter = add_products(beside(rows, np.zeros((rows.shape[1],) * 2)).T, centred)
        degrees = rows.shape[0] - 1
        # Equal rows can differ by rounding, which is no variance.
        if degrees == 0 or float(xp.linalg.trace(scatter)) <= 1e-12 * float(xp.sum(rows**2)):
            return False
        self._pooled += scatter
        self._degrees += degrees
        self._whitenings[label] = self._whitening(symmetric(scatter) / degrees)
        return True

    def _powers(self, features: Float[Any, "rows dim"]) -> Float[Any, "rows dim"]:
        """Return the rows in float32, raised to the Tukey power if they follow a ReLU."""
        xp = namespace(features)
        rows = as_type(features, xp.float32)
        if not self._is_after_relu or self._config.beta == 1:
            return rows
        # Later rows may be negative, and a power of a negative number is undefined.
        return xp.sign(rows) * xp.abs(rows) ** self._config.beta

    def _whitening(self, covariance: Float[Any, "dim dim"]) -> Float[Any, "dim dim"]:
        xp = namespace(covariance)
        alpha1, alpha2 = self._config.alpha1, self._config.alpha2
        if isinstance(alpha2, str):
            alpha2 = float(bool(self._is_after_relu))
        for _ in range(2 if self._is_after_relu else 1):
            covariance = shrink(covariance, alpha1, alpha2)
        roots = xp.sqrt(xp.linalg.diagonal(covariance))
        correlation = covariance / roots[:, None] / roots
        try:
            factor = Cholesky.of(correlation)
        except np.linalg.LinAlgError as error:
            raise StatisticsError(
                "the covariance of a class is not positive definite after its shrinkage by"
                f" {alpha1:g} and {alpha2:g}",
                remedy="Give a larger --fecam-alpha1.",
            ) from error
        whitening = factor.half(beside(correlation, np.eye(correlation.shape[0])))
        return xp.astype(whitening, xp.float32)


def shrink(
    covariance: Float[Any, "dim dim"], alpha1: float, alpha2: float
) -> Float[Any, "dim dim"]:
    """Return S + alpha1 v I + alpha2 o (1 - I).

    v is the mean on the diagonal, o the mean of nonzero entries off it, as in the authors' code.
    """
    xp = namespace(covariance)
    dim = covariance.shape[0]
    trace = float(xp.linalg.trace(covariance))
    apart = covariance - beside(covariance, np.eye(dim)) * covariance
    off = float(xp.sum(apart)) / max(1, int(xp.sum(xp.astype(apart != 0, xp.int64))))
    system = covariance + alpha2 * off
    return system + beside(system, (alpha1 * trace / dim - alpha2 * off) * np.eye(dim))


def _unit(rows: Float[Any, "rows dim"]) -> Float[Any, "rows dim"]:
    xp = namespace(rows)
    norms = xp.sqrt(xp.sum(rows**2, axis=1))[:, None]
    return rows / xp.where(norms > 0, norms, xp.ones_like(norms))


def _distances(
    whitening: Float[Any, "dim dim"], rows: Float[Any, "rows dim"], means: Float[Any, "classes dim"]
) -> Float[Any, "rows classes"]:
    """Return |whitening (x - m)|^2, O(rows dim (dim + classes))."""
    xp = namespace(rows)
    if means.shape[0] == 1:
        return xp.sum(((rows - means) @ whitening.T) ** 2, axis=1)[:, None]
    white, centres = rows @ whitening.T, means @ whitening.T
    squares = xp.sum(white**2, axis=1)[:, None] + xp.sum(centres**2, axis=1)
    return squares - 2 * (white @ centres.T)

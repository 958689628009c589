"""New rows as shrunken discriminants, and the direction that separates new from old images.

With mu_c the mean of a new class, m the mean of the means of all classes, S the covariance within
classes, pooled over old and new classes, and d its dimension,

    A = (1 - g) S + g tr(S) / d I,    u_c = A^-1 (mu_c - m),
    b_c = -u_c.m - rho / 2 (mu_c - m).u_c.

g = 1 gives class means, g = 0 and rho = 1 linear discriminants (J. H. Friedman, "Regularized
discriminant analysis", JASA 84, 1989). The quadratic term of the bias contains the noise of the
mean, which is large if there are few images, so that rho is free.

All new rows share a multiple of a direction that separates all new from all old images. With m_0
and m_1 the class-balanced means of old and of new images, and B the mean of their covariances,

    v = (0.7 B + 0.3 tr(B) / d I)^-1 (m_1 - m_0),    c = v.(m_0 + m_1) / 2.

25 classes tell such a direction much better than each class its own row, and without it the largest
of 25 logits is high by chance.

`clinit.headtrain.heads.start.discriminant_choice` chooses g, rho and the multiple.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from jaxtyping import Float
from scipy.linalg import cho_solve, cholesky, solve_triangular

from clinit.headtrain.heads.array import Cholesky
from clinit.headtrain.heads.linear import Rows

APART = 0.3
"""Shrinkage of the covariance for v; 0.1 to 0.5 differ by less than a point."""
EXACT = 1e-9
"""Relative size of the terms that `Discriminants.weight` leaves out."""


class Moments(NamedTuple):
    """What rows are computed from, besides S of all images, if some images are left out."""

    means: Float[np.ndarray, "new dim"]
    centre: Float[np.ndarray, " dim"]
    """Mean of the means of all classes."""
    freedom: float
    """Degrees of freedom of S."""
    lost: Float[np.ndarray, "lost dim"]
    """Rows whose outer products the scatter loses."""

    @property
    def offsets(self) -> Float[np.ndarray, "new dim"]:
        """mu_c - m."""
        return np.asarray(self.means - self.centre)

    @property
    def rounding(self) -> float:
        """Variances below are rounding errors in place of zeros."""
        return float(1e-12 * ((self.means**2).mean() + (self.centre**2).mean()))

    def rows(self, weight: Float[np.ndarray, "new dim"], quadratic: float) -> Rows:
        """Return u_c and b_c."""
        squares = (self.offsets * weight).sum(1)
        return Rows(weight, -weight @ self.centre - quadratic / 2 * squares)


@dataclass(frozen=True, slots=True, eq=False)
class Discriminants:
    """A factorisation of A of all images, for one shrinkage."""

    moments: Moments
    within: Float[np.ndarray, "dim dim"]
    """S."""
    shrinkage: float
    factor: Float[np.ndarray, "dim dim"]
    """L, lower triangular."""

    @classmethod
    def of(
        cls, moments: Moments, within: Float[np.ndarray, "dim dim"], shrinkage: float
    ) -> Discriminants:
        """Factorise A; without any variance within classes, it is the identity."""
        level = np.trace(within) / len(within)
        if level > moments.rounding:
            system = (1 - shrinkage) * within
            system[np.diag_indices_from(system)] += shrinkage * level
        else:
            system = np.eye(len(within))
        factor = cholesky(system, lower=True, overwrite_a=True, check_finite=False)
        return cls(moments, within, shrinkage, factor)

    def weight(self, fewer: Moments) -> Float[np.ndarray, "new dim"]:
        """Return u_c without the images that `fewer` lacks.

        With f and f' the degrees of freedom, X the lost rows and k = (1 - g) / f,

            A' = f / f' (M - r I),    M = A - k X'X,    r = g tr(X'X) / (f d),
            (M - r I)^-1 = M^-1 + r M^-2 + r^2 M^-3 + ...,
            M^-1 = L'^-1 (I + H (I - H'H)^-1 H') L^-1,    H = L^-1 X' sqrt(k).

        If half of the scatter is lost, A' is factorised; if all of it, A' is the identity.
        """
        lost, freedom, dim = fewer.lost, max(0.5, self.moments.freedom), len(self.within)
        gone, size = float(np.square(lost).sum()) / freedom, float(np.trace(self.within))
        least = max(1e-10 * size, dim * self.moments.rounding)
        if fewer.freedom < 0.5 or size - gone <= least:
            return fewer.offsets
        if gone > size / 2:
            within = (freedom * self.within - lost.T @ lost) / fewer.freedom
            alone = fewer._replace(lost=lost[:0])
            return Discriminants.of(alone, within, self.shrinkage).weight(alone)
        half = self._half(np.sqrt((1 - self.shrinkage) / freedom) * lost)
        inner = np.eye(len(lost)) - half.T @ half

        def solved(rows: Float[np.ndarray, "new dim"]) -> Float[np.ndarray, "new dim"]:
            right = self._half(rows)
            right += half @ np.linalg.solve(inner, half.T @ right)
            return np.asarray(solve_triangular(self.factor, right, lower=True, trans="T").T)

        term = total = solved(fewer.offsets)
        while np.abs(term).max(initial=0.0) > EXACT * np.abs(total).max(initial=0.0):
            term = self.shrinkage * gone / dim * solved(term)
            total = total + term
        return fewer.freedom / freedom * total

    def rows(self, fewer: Moments, quadratic: float) -> Rows:
        """Return u_c and b_c without the images that `fewer` lacks."""
        return fewer.rows(self.weight(fewer), quadratic)

    def own_part(self) -> float:
        """Return tr(A^-1 S): what the logit of an image that is part of S owes to itself."""
        return float(np.trace(cho_solve((self.factor, True), self.within)))

    def whitened(self, features: Float[np.ndarray, "rows dim"]) -> Float[np.ndarray, "rows dim"]:
        """Return L^-1 (h - m)."""
        return self._half(features - self.moments.centre).T

    def _half(self, rows: Float[np.ndarray, "rows dim"]) -> Float[np.ndarray, "dim rows"]:
        found: np.ndarray = solve_triangular(self.factor, rows.T, lower=True, check_finite=False)
        return found


def direction_apart(
    root: Float[np.ndarray, "rows dim"], gap: Float[np.ndarray, "1 dim"]
) -> np.ndarray:
    """Return v for a covariance B = root' root and the gap m_1 - m_0; without variance, the gap.

    If B has fewer rows than columns, (X'X + r I)^-1 = (I - X'(XX' + r I)^-1 X) / r.
    """
    level = float(np.square(root).sum()) / root.shape[1]
    if not level:
        return gap
    rows, ridge = np.sqrt(1 - APART) * root, APART * level
    if len(rows) >= rows.shape[1]:
        return np.asarray(Cholesky.ridged(rows.T @ rows, ridge).solve(gap.T).T)
    inner = Cholesky.ridged(rows @ rows.T, ridge).solve(rows @ gap.T)
    return np.asarray((gap - inner.T @ rows) / ridge)

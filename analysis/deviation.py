"""D_LS: how much more a head loses than the least-square head.

    D_LS(W) = 1/2 tr[(W - W_LS) S (W - W_LS)^T],    S = Ave[z z^T] + lam I,    z = (h, 1)

is the paper's Eq. 4 and, exactly, L(W) - L(W_LS) for the loss L of its Eq. 1 (X. Y. Han,
V. Papyan, D. L. Donoho, "Neural collapse under MSE loss", ICLR 2022). It grows with the square
of the scale of W, so heads of different losses are compared by the relative value

    D_LS(W) / (1/2 tr[W S W^T]).

With d = W - W_LS = (v, a), computed about the mean mu of h:

    tr[d S d^T] = tr[v Sigma_T v^T] + |v mu + a|^2 + lam (|v|^2 + |a|^2).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float

from clinit.headtrain.array import namespace, to_numpy
from clinit.headtrain.statistics.class_statistics import ClassStatistics
from clinit.headtrain.statistics.solve import least_squares_head


@dataclass(frozen=True, slots=True, eq=False)
class Deviation:
    """Deviation of a head from W_LS over the classes that have rows."""

    per_class: Float[np.ndarray, " classes"]
    """D_LS by head row; NaN for a class without rows."""
    size: float
    """1/2 tr[W S W^T]."""
    lam: float

    @property
    def d_ls(self) -> float:
        """D_LS, as in the paper."""
        return float(np.nansum(self.per_class))

    @property
    def relative(self) -> float:
        """D_LS relative to the size of the head; NaN for a head of zeros."""
        return self.d_ls / self.size if self.size > 0 else float("nan")


def deviation(
    statistics: ClassStatistics,
    weight: Float[Any, "classes dim"],
    bias: Float[Any, " classes"],
    *,
    lam: float,
) -> Deviation:
    """Return the deviation of (weight, bias), a row for each class of `statistics`.

    They are arrays of the library of `statistics`.

    Raises:
        StatisticsError: If lam = 0 and the least squares are singular.
    """
    best = least_squares_head(statistics, lam)
    xp = namespace(statistics.gram)
    weight, bias = xp.astype(weight, xp.float64), xp.astype(bias, xp.float64)
    difference = weight - best.weight, bias - best.bias
    absent = statistics.totals == 0
    per_class = np.where(absent, np.nan, half_square(statistics, *difference, lam=lam))
    size = half_square(statistics, weight, bias, lam=lam)[~absent].sum()
    return Deviation(per_class, float(size), lam)


def half_square(
    statistics: ClassStatistics,
    weight: Float[Any, "classes dim"],
    bias: Float[Any, " classes"],
    *,
    lam: float,
) -> Float[np.ndarray, " classes"]:
    """Return 1/2 w S w^T for each row w = (weight, bias)."""
    xp = namespace(statistics.gram)
    at_mean = weight @ statistics.mean + bias
    ridge = lam * (xp.sum(weight**2, axis=1) + bias**2)
    spread = xp.sum((weight @ statistics.total_covariance) * weight, axis=1)
    return to_numpy(spread + at_mean**2 + ridge) / 2

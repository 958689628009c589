"""Ridge regression: the least-square head W_LS over all rows of all classes seen so far.

The head of Eq. 3 of the paper, all of its rows written (see `clinit.headtrain.solve`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from clinit.headtrain.init.data import Rows
from clinit.headtrain.methods.joint import Joint
from clinit.headtrain.solve import least_squares_head
from clinit.headtrain.statistics import ClassStatistics


@dataclass(frozen=True, slots=True)
class Ridge(Joint):
    """Least squares with one-hot targets."""

    reads: ClassVar[tuple[str, ...]] = ("lam", "loss", "weighting")

    def solve(self, statistics: ClassStatistics, lam: float) -> Rows:
        """Return W_LS; the row of a class without data is zero: it predicts "not this one"."""
        head = least_squares_head(statistics, lam)
        return Rows(head.weight, head.bias)

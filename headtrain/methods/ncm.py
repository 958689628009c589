"""Nearest class mean: the class whose mean is nearest to the feature.

    -1/2 |h - mu_c|^2 = mu_c.h - 1/2 |mu_c|^2 - 1/2 |h|^2,

and the last term is the same for all classes: a linear head.

Source: T. Mensink, J. Verbeek, F. Perronnin, G. Csurka, "Distance-based image classification:
generalizing to new classes at near-zero cost", IEEE TPAMI 35(11), 2013.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from clinit.headtrain.array import namespace
from clinit.headtrain.init.data import Rows
from clinit.headtrain.methods.absent import rule_out_absent
from clinit.headtrain.methods.joint import Joint
from clinit.headtrain.statistics import ClassStatistics


@dataclass(frozen=True, slots=True)
class NearestClassMean(Joint):
    """Means of all rows of all classes seen so far."""

    reads: ClassVar[tuple[str, ...]] = ("loss",)

    def solve(self, statistics: ClassStatistics, lam: float) -> Rows:
        """Return (mu_c, -1/2 |mu_c|^2) for each class."""
        means = statistics.class_means
        squares = namespace(means).sum(means**2, axis=1)
        return rule_out_absent(Rows(means, -0.5 * squares), statistics)

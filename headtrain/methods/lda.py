"""Linear discriminant analysis with shrinkage over all rows of all classes seen so far.

Deep SLDA without its stream: see `clinit.headtrain.init.lda`, which has the formula.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from clinit.headtrain.init.data import Rows
from clinit.headtrain.init.lda import discriminants
from clinit.headtrain.methods.absent import rule_out_absent
from clinit.headtrain.methods.joint import Joint
from clinit.headtrain.statistics import ClassStatistics


@dataclass(frozen=True, slots=True)
class Lda(Joint):
    """Discriminants for equal priors."""

    reads: ClassVar[tuple[str, ...]] = ("loss", "weighting")

    def solve(self, statistics: ClassStatistics, lam: float) -> Rows:
        """Return the discriminant of each class."""
        return rule_out_absent(discriminants(statistics), statistics)

"""Heads that are solved as a whole from all rows of all classes seen so far, and not trained."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np
from jaxtyping import Bool

from clinit.headtrain.array import beside, namespace
from clinit.headtrain.init.lda import discriminants
from clinit.headtrain.least_squares.solve import least_squares_head
from clinit.headtrain.least_squares.statistics import ClassStatistics
from clinit.headtrain.rows import NEVER, Rows


@runtime_checkable
class SolvedHead(Protocol):
    """A way to solve for a head."""

    def solve(self, statistics: ClassStatistics, lam: float) -> Rows:
        """Return the head over all classes of `statistics`; not every method reads `lam`."""
        ...


def rule_out_absent(head: Rows, statistics: ClassStatistics) -> Rows:
    """Give the rows of classes without data weight 0 and a bias that no feature overcomes."""
    return rule_out(head, statistics.totals > 0)


def rule_out(head: Rows, has_data: Bool[np.ndarray, " classes"]) -> Rows:
    """Do this to the rows of all classes but those that have data."""
    xp = namespace(head.weight)
    present = beside(head.weight, has_data)
    return Rows(
        weight=xp.where(present[:, None], head.weight, 0.0),
        bias=xp.where(present, head.bias, NEVER),
    )


@dataclass(frozen=True, slots=True)
class NearestClassMean:
    """The class whose mean is nearest to the feature.

        -1/2 |h - mu_c|^2 = mu_c.h - 1/2 |mu_c|^2 - 1/2 |h|^2,

    and the last term is the same for all classes: a linear head.

    Source: T. Mensink, J. Verbeek, F. Perronnin, G. Csurka, "Distance-based image
    classification: generalizing to new classes at near-zero cost", IEEE TPAMI 35(11), 2013.
    """

    def solve(self, statistics: ClassStatistics, lam: float) -> Rows:
        """Return (mu_c, -1/2 |mu_c|^2) for each class."""
        means = statistics.class_means
        squares = namespace(means).sum(means**2, axis=1)
        return rule_out_absent(Rows(means, -0.5 * squares), statistics)


@dataclass(frozen=True, slots=True)
class Ridge:
    """Least squares with one-hot targets: the head of Eq. 3 of the paper, all rows written."""

    def solve(self, statistics: ClassStatistics, lam: float) -> Rows:
        """Return W_LS; the row of a class without data is zero: it predicts "not this one"."""
        return least_squares_head(statistics, lam)


@dataclass(frozen=True, slots=True)
class Lda:
    """Linear discriminants with shrinkage, for equal priors: `clinit.headtrain.init.lda`."""

    def solve(self, statistics: ClassStatistics, lam: float) -> Rows:
        """Return the discriminant of each class."""
        return rule_out_absent(discriminants(statistics), statistics)


SOLVED: Mapping[str, SolvedHead] = {"ncm": NearestClassMean(), "ridge": Ridge(), "lda": Lda()}
"""By the name of their method."""

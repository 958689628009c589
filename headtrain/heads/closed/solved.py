"""Heads that are solved from the statistics of all classes seen: nearest mean, ridge, LDA."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
from jaxtyping import Bool

from clinit.headtrain.heads.array import beside, namespace
from clinit.headtrain.heads.linear import NEVER, Rows
from clinit.headtrain.heads.start.new_rows import discriminants
from clinit.headtrain.heads.statistics.class_statistics import ClassStatistics
from clinit.headtrain.heads.statistics.solve import least_squares_head

Solve = Callable[[ClassStatistics, float], Rows]
"""Solves for a head over all classes; the second argument is lambda, which only `ridge` reads."""


def rule_out(head: Rows, has_data: Bool[np.ndarray, " classes"]) -> Rows:
    """For classes without data, set weights to 0 and biases so low that these classes never win."""
    xp = namespace(head.weight)
    present = beside(head.weight, has_data)
    return Rows(
        weight=xp.where(present[:, None], head.weight, 0.0),
        bias=xp.where(present, head.bias, NEVER),
    )


def nearest_class_mean(statistics: ClassStatistics, lam: float) -> Rows:
    """Return (mu_c, -1/2 |mu_c|^2) for each class: the class with the nearest mean wins.

        -1/2 |h - mu_c|^2 = mu_c.h - 1/2 |mu_c|^2 - 1/2 |h|^2,

    and the last term is the same for all classes, so that the head is linear.

    Source: T. Mensink, J. Verbeek, F. Perronnin, G. Csurka, "Distance-based image
    classification: generalizing to new classes at near-zero cost", IEEE TPAMI 35(11), 2013.
    """
    means = statistics.class_means
    squares = namespace(means).sum(means**2, axis=1)
    return rule_out(Rows(means, -0.5 * squares), statistics.totals > 0)


def lda(statistics: ClassStatistics, lam: float) -> Rows:
    """Return the discriminant of each class, for equal priors."""
    return rule_out(discriminants(statistics), statistics.totals > 0)


SOLVED: Mapping[str, Solve] = {"ncm": nearest_class_mean, "ridge": least_squares_head, "lda": lda}
"""The solver of each method. `ridge` gives a class without data a row of zeros."""

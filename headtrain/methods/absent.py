"""Classes without a training row, in heads that are solved from the data."""

from __future__ import annotations

from clinit.headtrain.array import beside, namespace
from clinit.headtrain.init.data import Rows
from clinit.headtrain.statistics import ClassStatistics

NEVER = -1e9
"""Bias of a row that must not win: finite, so that losses stay numbers."""


def rule_out_absent(head: Rows, statistics: ClassStatistics) -> Rows:
    """Give the rows of classes without data weight 0 and a bias that no feature overcomes."""
    xp = namespace(head.weight)
    present = beside(head.weight, statistics.totals > 0)
    return Rows(
        weight=xp.where(present[:, None], head.weight, 0.0),
        bias=xp.where(present, head.bias, NEVER),
    )

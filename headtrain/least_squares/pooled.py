"""Statistics of two sets of rows as those of one, for averages over rows."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from clinit.headtrain.least_squares.statistics import ClassStatistics


def pooled(one: ClassStatistics, other: ClassStatistics) -> ClassStatistics:
    """Return the statistics of the rows of both, each a whole set by itself.

    Unlike `+`, which adds parts of a set whose size is known beforehand. Averages over classes
    cannot be pooled: the weight of a row would change with each row of its class to come.

    Raises:
        ValueError: If the averages are over classes, or the numbers of classes differ.
    """
    if {one.weighting, other.weighting} != {"sample"} or one.num_classes != other.num_classes:
        raise ValueError("both must have averages over rows, and the same classes")
    totals = one.totals + other.totals
    return _within(one, totals) + _within(other, totals)


def _within(part: ClassStatistics, totals: np.ndarray) -> ClassStatistics:
    share = float(part.totals.sum()) / max(1, int(totals.sum()))
    return replace(part, totals=totals, gram=part.gram * share)

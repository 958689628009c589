"""Least-square rows: the rows of the new classes in W_LS, over buffer and new task together.

W_LS is solved for all classes that have a row in the data; only the new rows are written.
"""

from __future__ import annotations

from clinit.headtrain.init.data import NewClasses, Rows
from clinit.headtrain.solve import least_squares_head
from clinit.headtrain.statistics import ClassStatistics


def least_square_rows(data: NewClasses, statistics: ClassStatistics, lam: float) -> Rows:
    """Return the new rows of W_LS at `lam`."""
    head = least_squares_head(statistics, lam)
    return Rows(head.weight, head.bias).between(data.start, data.stop)

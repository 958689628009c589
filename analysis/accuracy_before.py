"""The accuracy on the base classes before new classes come, as the record of a run holds it.

New rows are there at the first evaluation already. Predicted among the base classes alone, it is
that of the head that the run started from: the rows of base classes are as they were.
"""

from __future__ import annotations

import polars as pl

from clinit.headtrain.record.format import RunRecord
from clinit.headtrain.record.info import settings_of


def accuracy_before(record: RunRecord, points: pl.DataFrame) -> float | None:
    """Return the accuracy of the base head on the base classes, in percent.

    None where the record does not hold it: no base class is tested, the record is of an earlier
    version, or the head is solved as a whole, the rows of base classes too.

    Args:
        record: That of the run.
        points: Its evaluation points, with `acc_pre_alone`.
    """
    if "init" not in settings_of(record.info):
        return None
    start = points.filter((pl.col("task") == 1) & (pl.col("iteration") == 0))
    return next(iter(start["acc_pre_alone"]), None)

"""What an exported model remembers of the images that its run was trained on."""

from __future__ import annotations

from collections.abc import Mapping

from clinit.headtrain.export.memory import Memory, first_rows
from clinit.headtrain.export.run_rows import run_rows
from clinit.headtrain.record.format import RunRecord

HELD_OUT_PER_CLASS = 20
"""Validation features that are remembered of each class, to measure the model on later."""


def memory_of_run(record: RunRecord, num_classes: int, depends_on: Mapping[str, str]) -> Memory:
    """Return the statistics of all training rows of the classes of a run, and held-out features.

    Args:
        record: Of a run with a frozen backbone; its caches are read again.
        num_classes: Classes of the model: the first ones of the record.
        depends_on: What the features depend on.

    Raises:
        CacheError: If a cache is not there any more, or is another one.
    """
    held_out = first_rows(run_rows(record, num_classes, "val"), HELD_OUT_PER_CLASS)
    return Memory.of(run_rows(record, num_classes, "train"), depends_on, held_out=held_out)

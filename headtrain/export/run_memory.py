"""What an exported model remembers of the images that its run was trained on."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from clinit.headtrain.export.memory import Memory, first_rows
from clinit.headtrain.export.run_rows import run_rows
from clinit.headtrain.record.format import RunRecord

HELD_OUT_PER_CLASS = 20
"""Validation features that are remembered of each class, to measure the model on later."""


def memory_of_run(
    record: RunRecord,
    num_classes: int,
    depends_on: Mapping[str, str],
    *,
    base: Path | None = None,
    new: Path | None = None,
) -> Memory:
    """Return the statistics of all training rows of the classes of a run, and held-out features.

    Args:
        record: Of a run with a frozen backbone; its caches are read again.
        num_classes: Classes of the model: the first ones of the record.
        depends_on: What the features depend on.
        base: The feature cache of the base classes, where it is not where the record says.
        new: That of the classes that arrived.

    Raises:
        CacheError: If a cache is not there any more, or is another one, as in `run_rows`.
    """
    train, val = (
        run_rows(record, num_classes, split, base=base, new=new) for split in ("train", "val")
    )
    held_out = first_rows(val, HELD_OUT_PER_CLASS)
    return Memory.of(train, depends_on, held_out=held_out)

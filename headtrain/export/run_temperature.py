"""The temperature of the head of a run, fitted on rows that the run was evaluated on."""

from __future__ import annotations

from pathlib import Path

from clinit.errors import CacheError, StorageError
from clinit.extract.head import Head
from clinit.headtrain.export.run_rows import run_rows
from clinit.headtrain.record.format import RunRecord
from clinit.headtrain.rows import never_wins
from clinit.headtrain.temperature import LEAST_ROWS, Temperature, temperature_of

NOT_DIVIDED = "the probabilities are those of the head as it was trained"


def temperature_of_run(
    record: RunRecord,
    head: Head,
    *,
    frozen: bool,
    base: Path | None = None,
    new: Path | None = None,
) -> tuple[Temperature | None, tuple[str, ...]]:
    """Return the temperature, or why there is none.

    Args:
        record: The run; its caches are read again.
        head: The head that it ended with.
        frozen: Whether its backbone is as it was: cached features are of no other.
        base: The feature cache of the base classes, where it is not where the record says.
        new: That of the classes that arrived.
    """
    if not frozen:
        why = "training has changed the backbone, so that cached features are not its own"
        return None, (f"{NOT_DIVIDED}: {why}",)
    try:
        rows = run_rows(record, head.num_classes, "val", base=base, new=new)
    except (CacheError, StorageError) as error:
        return None, (f"{NOT_DIVIDED}: {error}. {error.remedy}",)
    found = temperature_of(head, rows)
    if found is not None:
        return found, ()
    if (count := int((~never_wins(head))[rows.labels].sum())) < LEAST_ROWS:
        few = f"a temperature needs {LEAST_ROWS} held-out rows, the run has {count:,}"
        return None, (f"{NOT_DIVIDED}: {few}",)
    why = "no temperature has the least loss on its held-out rows: all are labelled right, or the"
    return None, (f"{NOT_DIVIDED}: {why} logits tell nothing of them",)

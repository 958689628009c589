"""Where the rows of an experiment are kept, and what that takes, said before it starts."""

from __future__ import annotations

from clinit.errors import MachineError
from clinit.extract.device import choose_device
from clinit.headtrain.memory import STEPS_AT_ONCE, HostMemory, peak_note, residency_notes
from clinit.headtrain.stream.pool import LOSS_SAMPLE_ROWS
from clinit.headtrain.stream.scenario import Scenario
from clinit.headtrain.stream.source import Source
from clinit.headtrain.stream.task_plan import TaskPlan
from clinit.headtrain.study import Study
from clinit.words import size_text

LARGEST = "the rows of the largest task"
LARGEST_OR_BASE = "the rows of the base, or of the largest task,"
"""Closed forms see the rows of the base in a pass of their own."""


def memory_notes(scenario: Scenario, base: Source, new: Source, study: Study) -> list[str]:
    """Return a note for the rows that do not fit into the memory of the device, or of the host.

    Raises:
        MachineError: If the host lacks memory for the rows of a few batches.
    """
    rows = {
        "the test rows": int(scenario.val_counts.sum()),
        _largest(study): TaskPlan(scenario, study).most_rows(),
    }
    sizes = {what: count * scenario.train.row_bytes for what, count in rows.items()}
    notes = residency_notes(sizes, choose_device(study.training.device))
    memory = base.memory or new.memory
    return notes if memory is None else [*notes, *_disk_notes(scenario, study, sizes, memory)]


def _disk_notes(
    scenario: Scenario, study: Study, sizes: dict[str, int], memory: HostMemory
) -> list[str]:
    row_bytes, batch = scenario.train.row_bytes, study.stream.rows_per_batch
    held = {what: size for what, size in sizes.items() if size <= memory.copied_bytes}
    gathered = 0
    if study.stream.iterations and _largest(study) not in held:
        gathered = 2 * STEPS_AT_ONCE * batch * row_bytes
    if gathered > memory.size_bytes:
        raise MachineError(
            f"the rows of {STEPS_AT_ONCE} updates, {batch:,} for each, and a copy of them take"
            f" {size_text(gathered)}, more than {memory}",
            remedy="Give a smaller --batch-size, or more memory (--memory; in Python, memory=).",
        )
    return [
        *(
            f"{what} take {size_text(size)}, more than a sixth of {memory}: they are read from disk"
            " each time they are needed"
            for what, size in sizes.items()
            if what not in held
        ),
        peak_note(sum(held.values()) + gathered + LOSS_SAMPLE_ROWS * row_bytes),
    ]


def _largest(study: Study) -> str:
    return LARGEST_OR_BASE if study.is_closed else LARGEST

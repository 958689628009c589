"""Which runs of a call are left, and how a run is finished that a killed call has begun."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from clinit.extract.head import Head
from clinit.headtrain.events import Observer, ignore
from clinit.headtrain.record.finished import is_finished
from clinit.headtrain.record.format import RunRecord, write_record
from clinit.headtrain.stream.source import Source
from clinit.headtrain.study import Study
from clinit.headtrain.top.experiment import run_top
from clinit.headtrain.top.inputs import TopInputs


def unfinished(
    studies: Sequence[Study],
    folders: Sequence[Path],
    base: Source,
    new: Source,
    head: Head,
    *,
    overwrite: bool = False,
) -> list[tuple[Study, Path]]:
    """Return the runs whose folder holds no record yet, each with its folder.

    The checkpoint of a recorded run is removed: it was killed after its record was written.

    Args:
        studies: What the runs are asked to do, resolved.
        folders: Of their records, in the same order.
        base: The data of the classes of the head.
        new: The data of the classes that arrive.
        head: What all runs start from.
        overwrite: Whether records that are there are to be replaced.

    Raises:
        RecordError: If a folder holds anything else, or no record can be written there.
    """
    left = []
    for study, folder in zip(studies, folders, strict=True):
        if is_finished(folder, study, base, new, head, overwrite=overwrite):
            _checkpoint_of(folder).unlink(missing_ok=True)
        else:
            left.append((study, folder))
    return left


def finish_run(
    inputs: TopInputs,
    study: Study,
    folder: Path,
    *,
    name: str | None = None,
    checkpoint: Path | None = None,
    checkpoint_every: int = 100,
    observer: Observer = ignore,
    head_facts: Mapping[str, Any] | None = None,
    command: Sequence[str] = (),
    overwrite: bool | None = None,
) -> RunRecord:
    """Train one run, or finish a killed one, and write its record; its checkpoint goes.

    Args:
        inputs: Stream, activations and network.
        study: What is trained.
        folder: Of the record.
        name: The run's name in the record; default: that of its study alone.
        checkpoint: The file to go on from; default: `FOLDER.checkpoint`.
        checkpoint_every: Updates between two checkpoints; 0 keeps one per task.
        observer: Told what happens as it happens.
        head_facts: Where the first head is from, for the record.
        command: What the user typed, for the record.
        overwrite: Whether a record that is there is replaced.

    Raises:
        CheckpointError: If the checkpoint is damaged or belongs to another run.
        ClinitError: If an image has become unreadable, or the record cannot be written.
    """
    checkpoint = checkpoint or _checkpoint_of(folder)
    record = run_top(
        inputs,
        study,
        checkpoint=checkpoint,
        checkpoint_every=checkpoint_every,
        observer=observer,
        head_facts=head_facts,
        command=command,
    )
    if name is not None:
        record = replace(record, info={**record.info, "id": name})
    write_record(record, folder, overwrite=overwrite)
    checkpoint.unlink(missing_ok=True)
    return record


def _checkpoint_of(folder: Path) -> Path:
    return folder.with_name(f"{folder.name}.checkpoint")

"""Runs with top blocks of one call: each is trained, resumed and recorded once."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path

from clinit.headtrain.protocol.events import Observer
from clinit.headtrain.protocol.record.format import write_record
from clinit.headtrain.protocol.runs import checkpoint_of
from clinit.headtrain.protocol.study.study import Study, by_stream
from clinit.headtrain.top.experiment import run_top
from clinit.headtrain.top.inputs import ImageData, prepare_runs


def train_top(
    data: ImageData,
    left: Mapping[Study, Path],
    *,
    watch: Callable[[Path | None], AbstractContextManager[Observer]],
    resume_from: Callable[[Study], Path] | None = None,
    checkpoint_every: int = 100,
    overwrite: bool | None = None,
) -> None:
    """Train runs with top blocks one after another, resume killed runs, and record each run.

    The checkpoint of a run is removed once its record is written.

    Args:
        data: The data of the runs, with images.
        left: The runs, resolved, each with the folder of its record.
        watch: Given the folder of a run, returns the observer of this run; given None, the observer
            of the computation of activations that precedes the runs.
        resume_from: Returns the file that a run resumes from; default: `FOLDER.checkpoint`.
        checkpoint_every: Updates between two checkpoints; 0: one per task.
        overwrite: Replace existing records; None if the caller has no such option.

    Raises:
        CheckpointError: If a checkpoint is damaged or belongs to another run.
        ClinitError: If an image has become unreadable, or a record cannot be written.
    """
    for runs in by_stream(left, data.by_head):
        with watch(None) as observer:
            inputs = prepare_runs(data, runs, observer=observer)
        for study in runs:
            place = left[study]
            checkpoint = resume_from(study) if resume_from else checkpoint_of(place)
            with watch(place) as observer:
                record = run_top(
                    inputs,
                    study,
                    checkpoint=checkpoint,
                    checkpoint_every=checkpoint_every,
                    observer=observer,
                )
            named = replace(record, info={**record.info, "id": place.name})
            write_record(named, place, overwrite=overwrite)
            checkpoint.unlink(missing_ok=True)

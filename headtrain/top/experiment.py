"""Runs with plastic top blocks: each is trained, resumed and recorded once.

rehearsal   new rows and a buffer of old rows      mean loss
naive       new rows only                          mean loss
joint       all rows of all classes seen so far    mean loss
ewc         new rows only                          mean loss + springs to former parameters
derpp       new rows and a buffer of old rows      weighted losses + distance to former logits
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

from clinit.headtrain.protocol.events import Paused, RunStarted, Stepped
from clinit.headtrain.protocol.experiment import records_of
from clinit.headtrain.protocol.learner import Learner, Log
from clinit.headtrain.protocol.record.format import RunRecord, write_record
from clinit.headtrain.protocol.runs import checkpoint_of
from clinit.headtrain.protocol.study.parts import Top
from clinit.headtrain.protocol.study.study import Study, by_stream, names_of
from clinit.headtrain.top.blocks import PHASES, TopBlocks
from clinit.headtrain.top.checkpoint import Checkpoint, read_checkpoint, resumed_from
from clinit.headtrain.top.inputs import ImageData, TopInputs, prepare_runs
from clinit.headtrain.top.methods import Derpp, Ewc
from clinit.headtrain.top.training import TopMethod
from clinit.machine import now
from clinit.observer import Noted, Observer, ignore


def run_top(
    inputs: TopInputs, study: Study, checkpoint: Path | None, every: int, observer: Observer
) -> RunRecord:
    """Train a copy of the network on its stream; return the record.

    The same call on the same device gives the same numbers, even if it was killed in between and
    resumes from its checkpoint.

    Args:
        inputs: Stream, activations and network.
        study: The study to train; it differs from the study of `inputs` at most in the settings
            `study.PER_HEAD`.
        checkpoint: A file to resume from and to update; None: no checkpoints.
        every: Updates between two checkpoints; 0: one per task.
        observer: Called with each event as it happens.

    Raises:
        CheckpointError: If the checkpoint is damaged or belongs to another run.
        ClinitError: If an image has become unreadable or the storage fails.
    """
    study, data = study.resolved(), inputs.data
    digest, log = inputs.digest(study), Log()
    found = read_checkpoint(checkpoint, digest, inputs.device) if checkpoint else None
    started = now()
    blocks = TopBlocks(inputs, study, top_method(study), found, every if checkpoint else 0)

    def store(log: Log, paused: Paused) -> None:
        if checkpoint is not None:
            Checkpoint(checkpoint, digest, paused.iteration, log, **paused.state).write()

    experiment = replace(inputs.experiment, studies=(study,))
    if found is not None:
        log = found.log
        observer(Noted(resumed_from(found, *names_of([study]))))
        observer(Stepped(log.finished * study.stream.iterations))
    learner = Learner(experiment, blocks, observer, log, store)
    learner.learn()
    facts = {
        "started": started,
        "timings_s": {phase: learner.watch.seconds[phase] for phase in PHASES},
        "optimizer": {
            "name": "AdamW",
            "layer_decay": inputs.top.layer_decay,
            "schedule": "one cycle a task",
            "state": "fresh each task",
        },
        "top": {"blocks": blocks.model.cut.blocks},
        "activations": list(inputs.parts),
    }
    (record,) = records_of(learner, data, data.notes(experiment), facts)
    return record


def train_top(
    data: ImageData,
    left: Mapping[Study, Path],
    *,
    observer: Observer = ignore,
    resume_from: Callable[[Study], Path] | None = None,
    checkpoint_every: int = 100,
    overwrite: bool | None = None,
) -> None:
    """Train runs with top blocks one after another, resume killed runs, and record each run.

    The checkpoint of a run is removed once its record is written.

    Args:
        data: The data of the runs, with images.
        left: The runs, resolved, each with the folder of its record.
        observer: Called with each event as it happens.
        resume_from: Returns the file that a run resumes from; default: `FOLDER.checkpoint`.
        checkpoint_every: Updates between two checkpoints; 0: one per task.
        overwrite: Replace existing records; None if the caller has no such option.

    Raises:
        CheckpointError: If a checkpoint is damaged or belongs to another run.
        ClinitError: If an image has become unreadable, or a record cannot be written.
    """
    for runs in by_stream(left, data.heads):
        inputs = prepare_runs(data, runs, observer=observer)
        for study in runs:
            place = left[study]
            checkpoint = resume_from(study) if resume_from else checkpoint_of(place)
            observer(RunStarted(place))
            record = run_top(inputs, study, checkpoint, checkpoint_every, observer)
            named = replace(record, info={**record.info, "id": place.name})
            write_record(named, place, overwrite=overwrite)
            checkpoint.unlink(missing_ok=True)


def top_method(study: Study) -> TopMethod:
    """Return a new method for a resolved study; it reads only its own settings."""
    name, loss, top = study.stream.method, study.training.loss, study.top or Top()
    if name == "ewc":
        return Ewc(top.ewc, loss_name=loss, seed=study.stream.seed)
    return Derpp(top.derpp, loss) if name == "derpp" else TopMethod(loss)

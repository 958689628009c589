"""Run one head over the stream with plastic top blocks.

rehearsal   new rows and a buffer of old rows      mean loss
naive       new rows only                          mean loss
joint       all rows of all classes seen so far    mean loss
ewc         new rows only                          mean loss + springs to former parameters
derpp       new rows and a buffer of old rows      weighted losses + distance to former logits
"""

from __future__ import annotations

from pathlib import Path

from clinit.headtrain.protocol.events import Observer, ignore
from clinit.headtrain.protocol.experiment import now, records_of
from clinit.headtrain.protocol.learner import Learner
from clinit.headtrain.protocol.record.format import RunRecord
from clinit.headtrain.protocol.stream.notes import data_notes
from clinit.headtrain.protocol.study.methods import Top
from clinit.headtrain.protocol.study.study import Study
from clinit.headtrain.top.blocks import PHASES, TopBlocks
from clinit.headtrain.top.derpp import Derpp
from clinit.headtrain.top.ewc import Ewc
from clinit.headtrain.top.inputs import TopInputs
from clinit.headtrain.top.training import Held, Rehearsal, TopMethod


def run_top(
    inputs: TopInputs,
    study: Study,
    *,
    checkpoint: Path | None = None,
    checkpoint_every: int = 100,
    observer: Observer = ignore,
) -> RunRecord:
    """Train a copy of the network on its stream; return the record.

    The same call on the same device gives the same numbers, even if it was killed in between and
    resumes from its checkpoint.

    Args:
        inputs: Stream, activations and network.
        study: The study to train; it differs from the study of `inputs` at most in the settings
            `study.PER_HEAD`.
        checkpoint: A file to resume from and to update; None: no checkpoints.
        checkpoint_every: Updates between two checkpoints; 0: one per task.
        observer: Called with each event as it happens.

    Raises:
        CheckpointError: If the checkpoint is damaged or belongs to another run.
        ClinitError: If an image has become unreadable or the storage fails.
    """
    study, started, data = study.resolved(), now(), inputs.data
    blocks = TopBlocks(inputs, study, top_method(study), checkpoint, checkpoint_every)
    learner = Learner(inputs.scenario, inputs.task_plan, [study], blocks, observer)
    learner.learn()
    (record,) = records_of(
        learner,
        data,
        started,
        data_notes(
            inputs.scenario, data.base, data.new, [study], data.facts_for(study.training.loss)
        ),
        {phase: learner.watch.seconds[phase] for phase in PHASES},
        {
            "name": "AdamW",
            "layer_decay": inputs.top.layer_decay,
            "schedule": "one cycle a task",
            "state": "fresh each task",
        },
        facts={
            "top": {"blocks": blocks.model.cut.blocks},
            "activations": list(inputs.parts),
        },
        changed=blocks.changed,
    )
    return record


def top_method(study: Study) -> TopMethod:
    """Return a new method for a resolved study; it reads only its own settings."""
    strength, method = study.training.anchor_strength, _method(study)
    if study.training.anchor == "l2" and isinstance(strength, int | float):
        return Held(method, strength)
    return method


def _method(study: Study) -> TopMethod:
    name, loss = study.stream.method, study.training.loss
    top = study.top or Top()
    if name in ("rehearsal", "naive", "joint"):
        return Rehearsal(loss)
    if name == "ewc":
        return Ewc(top.ewc, loss_name=loss, seed=study.stream.seed)
    assert name == "derpp"
    return Derpp.of(top.derpp, loss)

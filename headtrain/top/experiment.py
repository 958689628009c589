"""Run one head over the stream with plastic top blocks.

rehearsal   new rows and a buffer of old ones      mean loss
naive       new rows alone                         mean loss
joint       all rows of all classes seen so far    mean loss
ewc         new rows alone                         mean loss + springs to former parameters
derpp       new rows and a buffer of old ones      weighted losses + distance to former logits
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from clinit.headtrain.events import Observer, ignore
from clinit.headtrain.experiment import Origin, records_of
from clinit.headtrain.learner import Learner
from clinit.headtrain.record.format import RunRecord
from clinit.headtrain.stream.notes import data_notes
from clinit.headtrain.study import PER_HEAD, Study, Top
from clinit.headtrain.top.blocks import PHASES, TopBlocks
from clinit.headtrain.top.derpp import Derpp
from clinit.headtrain.top.ewc import Ewc
from clinit.headtrain.top.inputs import StoredPart, TopInputs
from clinit.headtrain.top.method import Rehearsal, TopMethod


def top_notes(
    inputs: TopInputs,
    studies: Sequence[Study],
    head_facts: Mapping[str, Any] | None = None,
) -> list[str]:
    """Return what the user should know about the data, each once."""
    notes = data_notes(inputs.scenario, inputs.base, inputs.new, studies, head_facts)
    return [*notes, *_method_notes(inputs)]


def _method_notes(inputs: TopInputs) -> list[str]:
    """Return a note where a method lacks the rows that it depends on."""
    method = inputs.study.stream.method
    counts = inputs.scenario.train_counts[: inputs.scenario.num_base]
    if method == "ewc" and inputs.top.ewc.lam and not counts.any():
        return ["no base class has a training image: EWC anchors nothing of the base"]
    if method == "derpp" and not inputs.task_plan.rows(inputs.scenario.tasks[0]).num_old:
        return ["no old row before task 1: there, DER++ is the mean loss of the new rows alone"]
    return []


def run_top(
    inputs: TopInputs,
    study: Study,
    *,
    checkpoint: Path | None = None,
    checkpoint_every: int = 100,
    observer: Observer = ignore,
    head_facts: Mapping[str, Any] | None = None,
    command: Sequence[str] = (),
) -> RunRecord:
    """Train a copy of the network on its stream; return the record.

    The same call on the same device gives the same numbers, also where it was killed in between
    and goes on from its checkpoint.

    Args:
        inputs: Stream, activations and network.
        study: What is trained; it differs from that of `inputs` at most in the settings
            `study.PER_HEAD`.
        checkpoint: A file to go on from and to keep up to date; None keeps none.
        checkpoint_every: Updates between two checkpoints; 0 keeps one per task.
        observer: Told what happens as it happens.
        head_facts: Where the first head is from, for the record.
        command: What the user typed, for the record.

    Raises:
        ValueError: If the stream or the top of the study differs from that of the inputs.
        CheckpointError: If the checkpoint is damaged or belongs to another run.
        ClinitError: If an image has become unreadable or the storage fails.
    """
    study = study.resolved()
    if study.shared != inputs.study.shared:
        raise ValueError(f"a run differs from its inputs at most in {', '.join(PER_HEAD)}")
    origin = Origin.of(inputs.base, inputs.new, inputs.initial_head, head_facts, command)
    blocks = TopBlocks(inputs, study, top_method(study), checkpoint, checkpoint_every)
    learner = Learner(inputs.scenario, inputs.task_plan, [study], blocks, observer)
    learner.learn()
    assert blocks.shares is not None
    activations = [_activations(part, part.name in blocks.paid) for part in inputs.parts]
    paid = (each["seconds"] or 0.0 for each in activations if each["computed_here"])
    (record,) = records_of(
        learner,
        origin,
        top_notes(inputs, [study], head_facts),
        {"trunk": math.fsum(paid), **{phase: learner.watch.seconds[phase] for phase in PHASES}},
        {
            "name": "AdamW",
            "layer_decay": inputs.top.layer_decay,
            "schedule": "one cycle a task",
            "state": "fresh each task",
        },
        facts={
            "top": {
                "blocks": blocks.model.cut.blocks,
                "trained_parameters": blocks.shares.trained,
                "plastic_parameters": blocks.shares.plastic,
                "block_parameters": blocks.shares.block,
                "total_parameters": blocks.shares.total,
            },
            "activations": activations,
        },
        changed=blocks.changed,
    )
    return record


def _activations(part: StoredPart, computed_here: bool) -> dict[str, Any]:
    """Return what the record says about the activations of one split.

    `computed_here` says whether the seconds are a cost of this run, because it (or an attempt at
    it that was killed after a checkpoint) has computed the activations, or of an earlier run. On
    its own, the run would have had to pay them in both cases.
    """
    return {
        "part": part.name,
        "rows": part.rows,
        "bytes": part.bytes,
        "stored": part.stored,
        "seconds": part.seconds,
        "computed_here": computed_here,
    }


def top_method(study: Study) -> TopMethod:
    """Return a fresh method of a resolved study; only its own settings are read."""
    name, loss = study.stream.method, study.training.loss
    top = study.top or Top()
    if name in ("rehearsal", "naive", "joint"):
        return Rehearsal(loss)
    if name == "ewc":
        return Ewc(top.ewc, loss_name=loss, seed=study.stream.seed)
    assert name == "derpp"
    return Derpp(top.derpp, loss_name=loss)

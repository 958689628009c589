"""What the data and the machine lack for an experiment, if the user can do something about it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool

from clinit.errors import MachineError
from clinit.headtrain.array import cupy_problem
from clinit.headtrain.groups import one_of_each
from clinit.headtrain.ram import STEPS_AT_ONCE, peak_note
from clinit.headtrain.stream.buffer import LOSS_SAMPLE_ROWS
from clinit.headtrain.stream.scenario import Scenario
from clinit.headtrain.stream.source import NONE_EVALUATED, Source
from clinit.headtrain.stream.task_plan import TaskPlan
from clinit.headtrain.study.study import Study
from clinit.machine import choose_device
from clinit.words import examples, size_text


def data_notes(
    scenario: Scenario,
    base: Source,
    new: Source,
    studies: Sequence[Study],
    head_facts: Mapping[str, Any] | None = None,
) -> list[str]:
    """Return what the user should know before training starts.

    Args:
        scenario: The data under one numbering.
        base: Features of the classes of the pretrained head.
        new: Features of the classes that arrive.
        studies: Of one stream, resolved.
        head_facts: What is known about the pretrained head.

    Raises:
        MachineError: If the host lacks memory for the rows of a few batches.
    """
    study = studies[0]
    return [
        *base.notes,
        *new.notes,
        *_class_gaps(scenario, base, new, study),
        *_buffer_gaps(scenario, study),
        *_loss_gaps(studies, (head_facts or {}).get("alignment") or {}),
        *_memory_notes(scenario, base, new, study),
        *_start_gaps(scenario, studies),
        *_library_gaps(choose_device(study.training.device)),
    ]


def _class_gaps(scenario: Scenario, base: Source, new: Source, study: Study) -> list[str]:
    names, first = scenario.class_names, scenario.num_base
    untrained, untested = scenario.train_counts == 0, scenario.val_counts == 0
    left = "left out of a solved head" if study.is_solved else "not rehearsed"
    sides = {"base": (base, slice(first)), "new": (new, slice(first, None))}
    return [
        *_about(names[:first], untrained[:first], f"base classes have no training image: {left}"),
        *_about(
            new.class_names, new.train.counts() == 0, "new classes have no training image: left out"
        ),
        *(
            note
            for kind, (side, rows) in sides.items()
            if not any(text.endswith(NONE_EVALUATED) for text in side.notes)
            for note in _about(
                names[rows],
                untested[rows],
                f"{kind} classes have no validation image: not evaluated",
            )
        ),
        *_about(
            names[first:],
            np.isin(names[first:], names[:first]),
            "new classes have the name of a base class: they are classes of their own",
        ),
    ]


def _about(names: Sequence[str], which: Bool[np.ndarray, " names"], what: str) -> list[str]:
    chosen = [names[index] for index in np.flatnonzero(which).tolist()]
    return [f"{len(chosen):,} of {len(names):,} {what} ({examples(chosen)})"] if chosen else []


def _buffer_gaps(scenario: Scenario, study: Study) -> list[str]:
    size = study.stream.buffer
    seen = int(np.count_nonzero(scenario.train_counts[: scenario.learnt[-1].start]))
    if not (study.keeps_buffer and size and size < seen):
        return []
    return [
        f"the buffer of {size:,} rows is smaller than the number of classes ({seen:,} before the"
        " last task): some have no row in it"
    ]


def _loss_gaps(studies: Sequence[Study], alignment: Mapping[str, Any]) -> list[str]:
    aligned, losses = alignment.get("loss"), {study.training.loss for study in studies}
    if aligned and (others := sorted(losses - {aligned})):
        return [f"the base head is aligned with {aligned}, not with {', '.join(others)}"]
    if aligned is None and "mse" in losses:
        return [
            "squared error aims at logits of 30: a base head that was trained with cross entropy"
            " has to come to that scale first (`clinit align`)"
        ]
    return []


def _memory_notes(scenario: Scenario, base: Source, new: Source, study: Study) -> list[str]:
    """Return the peak of memory of an experiment whose features are on disk."""
    memory = base.memory or new.memory
    if memory is None:
        return []
    train, batch = scenario.train, study.stream.rows_per_batch
    rows = [int(scenario.val_counts.sum()), most := TaskPlan(scenario, study).most_rows()]
    gathered = 2 * STEPS_AT_ONCE * batch * train.row_bytes
    if train.holds(most) or not study.stream.iterations:
        gathered = 0
    if gathered > memory.size_bytes:
        raise MachineError(
            f"the rows of {STEPS_AT_ONCE} updates, {batch:,} for each, and a copy of them take"
            f" {size_text(gathered)}, more than {memory}",
            remedy="Give a smaller --batch-size, or more memory (--memory; in Python, memory=).",
        )
    held = sum(count for count in rows if train.holds(count)) + LOSS_SAMPLE_ROWS
    return [peak_note(held * train.row_bytes + gathered)]


def _start_gaps(scenario: Scenario, studies: Sequence[Study]) -> list[str]:
    """Say what new head rows cannot be calibrated on or judged by, and which images repeat."""
    study, stream, train = studies[0], studies[0].stream, scenario.train
    starts = [each.start for each in studies if each.start.init not in ("random", "zero")]
    notes = []
    if any(each.start.scale == "calibrated" for each in studies) and (
        study.start.init_rows == "new"
        or (study.keeps_buffer and 0 in (stream.buffer, stream.buffer_per_class))
    ):
        notes.append(
            "initialisation sees no rows of earlier classes to calibrate new head rows against:"
            " they take the norm of the old ones, as with scale norm"
        )
    if not starts and not study.is_solved:
        return notes
    new = np.flatnonzero(train.labels >= scenario.num_base)
    groups = train.groups_of(new)
    of_groups = one_of_each(train.labels[new], groups)
    if len(of_groups) < len(new):
        notes.append(
            f"of {len(new):,} training images of new classes, {len(new) - len(of_groups):,} repeat"
            " others (copies, crops or frames): they count as one where new head rows start"
        )
    judged = any(
        (start.is_calibrated and start.calibration == "leave-one-out")
        or (start.reads_lambda and start.lam == "auto")
        for start in starts
    )
    if judged and not (np.bincount(of_groups) > 1).any():
        notes.append(
            "with a single training image per new class there is none to leave out: scale and"
            " lambda of new rows are guesses from old classes, and no start can be trusted to be"
            " better than another"
        )
    return notes


def _library_gaps(device: torch.device) -> list[str]:
    if device.type != "cuda" or (problem := cupy_problem()) is None:
        return []
    return [
        f"{problem}: statistics and solves are computed on the CPU"
        ' (`pip install "clinit[cuda12]"` or `"clinit[cuda13]"`, as the driver is)'
    ]

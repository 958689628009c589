"""What the data lacks for the experiment that is asked for, said before it starts.

Where the rows of an experiment are kept, and what that takes, said before it starts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool

from clinit.errors import MachineError
from clinit.headtrain.array import cupy_problem
from clinit.headtrain.groups import one_of_each
from clinit.headtrain.ram import STEPS_AT_ONCE, HostMemory, peak_note, residency_notes
from clinit.headtrain.stream.buffer import LOSS_SAMPLE_ROWS
from clinit.headtrain.stream.scenario import Scenario
from clinit.headtrain.stream.source import NONE_EVALUATED, Source
from clinit.headtrain.stream.task_plan import TaskPlan
from clinit.headtrain.study import Study
from clinit.headtrain.study.checks import DEFAULT_BUFFER
from clinit.machine import choose_device
from clinit.words import examples, listed, number_of, size_text


def data_notes(
    scenario: Scenario,
    base: Source,
    new: Source,
    studies: Sequence[Study],
    head_facts: Mapping[str, Any] | None = None,
) -> list[str]:
    """Return a note for everything that the user should know about the data, each once.

    Args:
        scenario: The data under one numbering.
        base: Features of the classes of the pretrained head.
        new: Features of the classes that arrive.
        studies: Of one stream, resolved.
        head_facts: What is known about the pretrained head.
    """
    study = studies[0]
    return [
        *base.notes,
        *new.notes,
        *_base_gaps(scenario, base, study),
        *_new_gaps(scenario, new),
        *_single_images(scenario),
        *_repeats(scenario, studies),
        *_shared_names(scenario),
        *_task_sizes(scenario),
        *_buffer_gaps(scenario, study),
        *_batch_gaps(scenario, study),
        *_loss_gaps(studies, head_facts or {}),
        *memory_notes(scenario, base, new, study),
        *_calibration_gaps(studies),
        *_nothing_to_leave_out(scenario, studies),
        *_library_gaps(choose_device(study.training.device)),
    ]


def _base_gaps(scenario: Scenario, base: Source, study: Study) -> list[str]:
    names = scenario.class_names[: scenario.num_base]
    unrehearsed = scenario.train_counts[: scenario.num_base] == 0
    untested = scenario.val_counts[: scenario.num_base] == 0
    left = (
        "are left out of a head that is solved from the data"
        if study.is_solved
        else "keep their head rows and are not rehearsed"
    )
    return [
        *_about(names, unrehearsed, f"base classes have no training image: they {left}"),
        *_untested(base, names, untested, "base classes", "they are not evaluated"),
    ]


def _new_gaps(scenario: Scenario, new: Source) -> list[str]:
    arrived = slice(scenario.num_base, None)
    untested = scenario.val_counts[arrived] == 0
    tasks = scenario.task_of_row[arrived]
    blind = [task.number for task in scenario.learnt if untested[tasks == task.number].all()]
    return [
        *_about(
            new.class_names,
            new.train.counts() == 0,
            "new classes have no training image: they are left out of the stream",
        ),
        *_untested(
            new,
            scenario.class_names[arrived],
            untested,
            "new classes",
            "they are trained but not evaluated",
        ),
        *([] if untested.all() else _blind(blind)),
    ]


def _untested(
    side: Source, names: Sequence[str], untested: Bool[np.ndarray, " classes"], what: str, then: str
) -> list[str]:
    """Say which classes are not evaluated, unless the cache has said it of all of them."""
    if untested.all() and any(text.endswith(NONE_EVALUATED) for text in side.notes):
        return []
    return _about(names, untested, f"{what} have no validation image: {then}")


def _blind(tasks: Sequence[int]) -> list[str]:
    """Name the tasks that none of the classes is evaluated of, in one note."""
    if not tasks:
        return []
    which = f"task {tasks[0]} has" if len(tasks) == 1 else f"tasks {listed(map(str, tasks))} have"
    whose = "its" if len(tasks) == 1 else "their"
    return [f"{which} no validation image at all: {whose} accuracy on new classes is unknown"]


def _single_images(scenario: Scenario) -> list[str]:
    return _about(
        scenario.class_names,
        scenario.train_counts == 1,
        "classes have a single training image",
    )


def _repeats(scenario: Scenario, studies: Sequence[Study]) -> list[str]:
    train, first = scenario.train, scenario.num_base
    if not any(study.start.init != "random" or study.is_solved for study in studies):
        return []
    new = np.flatnonzero(train.labels >= first)
    if (groups := train.groups_of(new)) is None:
        return []
    sizes = np.unique(groups, return_counts=True)[1]
    return [
        f"of {len(new):,} training images of new classes, {len(new) - len(sizes):,} repeat others"
        f" ({number_of(int((sizes > 1).sum()), 'group')} of copies, crops or frames): each group"
        " counts as one image where new head rows start"
    ]


def _shared_names(scenario: Scenario) -> list[str]:
    base = set(scenario.class_names[: scenario.num_base])
    new = scenario.class_names[scenario.num_base :]
    return _about(
        new,
        np.array([name in base for name in new]),
        "new classes have the name of a base class: they are classes of their own",
    )


def _task_sizes(scenario: Scenario) -> list[str]:
    sizes = [len(task.classes) for task in scenario.tasks]
    if len(set(sizes)) == 1:
        return []
    return [
        f"{sum(sizes):,} new classes do not divide into {len(sizes)} equal tasks:"
        f" they have {', '.join(map(str, sizes))} classes"
    ]


def _buffer_gaps(scenario: Scenario, study: Study) -> list[str]:
    if not study.keeps_buffer:
        return []
    if study.rehearses and not (study.stream.buffer or study.stream.buffer_per_class):
        return ["the buffer is empty (--buffer 0): batches hold new rows only"]
    notes = []
    stored = np.cumsum(scenario.train_counts)
    before = [int(stored[task.start - 1]) if task.start else 0 for task in scenario.learnt]
    if not before[0] and study.rehearses:
        notes.append("no base class has a training image: the batches of task 1 hold new rows only")
    if not study.stream.buffer:
        return notes
    # Who asked for no size has none in mind that something could be smaller than.
    if before[-1] < study.stream.buffer != DEFAULT_BUFFER:
        notes.append(
            f"the buffer of {study.stream.buffer:,} rows never fills: the classes before the last"
            f" task have {before[-1]:,}, and all are kept"
        )
    seen = int(np.count_nonzero(scenario.train_counts[: scenario.learnt[-1].start]))
    if study.stream.buffer < seen:
        notes.append(
            f"the buffer of {study.stream.buffer:,} rows is smaller than the number of classes"
            f" ({seen:,} before the last task): some classes"
            f" are not {'rehearsed' if study.rehearses else 'among its rows'}"
        )
    return notes


def _batch_gaps(scenario: Scenario, study: Study) -> list[str]:
    if study.stream.method == "joint" or study.is_solved:
        return []
    share = study.stream.rows_per_batch // 2 if study.rehearses else study.stream.rows_per_batch
    smallest = min(int(scenario.train_counts[task.rows].sum()) for task in scenario.learnt)
    if smallest >= share:
        return []
    return [
        f"a batch takes {share:,} rows of the new task, but the smallest task has {smallest:,}:"
        " rows come more than once in a batch"
    ]


def _loss_gaps(studies: Sequence[Study], head_facts: Mapping[str, Any]) -> list[str]:
    aligned = (head_facts.get("alignment") or {}).get("loss")
    losses = {study.training.loss for study in studies}
    notes = []
    if "mse" in losses and aligned != "mse":
        notes.append(
            "squared error aims at logits of 30 for the right class: a base head that was trained"
            " with cross entropy first has to come to that scale (`clinit align` brings it there)"
        )
    if others := sorted(losses - {aligned}) if aligned else []:
        notes.append(f"the base head is aligned with {aligned}, not with {', '.join(others)}")
    return notes


def _calibration_gaps(studies: Sequence[Study]) -> list[str]:
    calibrated = any(each.start.scale == "calibrated" for each in studies)
    study, stream = studies[0], studies[0].stream
    without = study.start.init_rows == "new" or (
        study.keeps_buffer and 0 in (stream.buffer, stream.buffer_per_class)
    )
    if not (calibrated and without):
        return []
    return [
        "initialisation sees no rows of earlier classes to calibrate new head rows against: they"
        " take the norm of the old ones, as with scale norm"
    ]


def _nothing_to_leave_out(scenario: Scenario, studies: Sequence[Study]) -> list[str]:
    starts = [study.start for study in studies if study.start.init not in ("random", "zero")]
    judged = any(
        (start.is_calibrated and start.calibration == "leave-one-out")
        or (start.reads_lambda and start.lam == "auto")
        for start in starts
    )
    if not judged:
        return []
    train = scenario.train
    new = np.flatnonzero(train.labels >= scenario.num_base)
    if (np.bincount(one_of_each(train.labels[new], train.groups_of(new))) > 1).any():
        return []
    return [
        "with a single training image per new class there is none to leave out: the scale of new"
        " rows is learnt from single images of old classes (if no two have two rows, new rows take"
        " the norm of the old ones, and twice that if least-square rows are trained), and lambda is"
        " the size of the largest eigenvalue of the features; no start can be trusted to be better"
        " than another"
    ]


def _library_gaps(device: torch.device) -> list[str]:
    if device.type != "cuda" or (problem := cupy_problem()) is None:
        return []
    return [
        f"{problem}: statistics and solves are computed on the CPU, with NumPy, and the features"
        ' are copied there (`pip install "clinit[cuda12]"` or `"clinit[cuda13]"`, as the driver is)'
    ]


def _about(names: Sequence[str], which: Bool[np.ndarray, " names"], what: str) -> list[str]:
    chosen = [names[index] for index in np.flatnonzero(which).tolist()]
    if not chosen:
        return []
    return [f"{len(chosen):,} of {len(names):,} {what} ({examples(chosen)})"]


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

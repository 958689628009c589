"""Notes on missing data or hardware of an experiment, if the user can do something about it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import compress
from typing import Any

import numpy as np

from clinit.errors import MachineError
from clinit.headtrain.array import cupy_problem
from clinit.headtrain.groups import one_of_each
from clinit.headtrain.ram import STEPS_AT_ONCE, HostMemory
from clinit.headtrain.stream.scenario import Scenario
from clinit.headtrain.stream.source import Source
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
        head_facts: Facts about the pretrained head.

    Raises:
        MachineError: If the host lacks memory for the rows of a few batches.
    """
    _check_room(scenario, base.memory or new.memory, studies[0])
    notes = [*base.notes, *new.notes, *_class_gaps(scenario, new, studies[0])]
    if any(study.keeps_statistics for study in studies):
        dim, last = scenario.train.dim, scenario.learnt[-1]
        classes = int(np.count_nonzero(scenario.train_counts[: last.start]))
        numbers = (classes + dim) * dim
        notes.append(
            f"statistics of earlier classes are kept: C d + d^2 = {numbers:,} numbers for the"
            f" {classes:,} classes before the last task, {size_text(8 * numbers)}"
        )
    losses = {study.training.loss for study in studies}
    aligned = ((head_facts or {}).get("alignment") or {}).get("loss")
    if aligned and losses != {aligned}:
        others = ", ".join(sorted(losses - {aligned}))
        notes.append(f"the base head is aligned with {aligned}, not with {others}")
    elif not aligned and "mse" in losses and scenario.num_base:
        notes.append(
            "squared error aims at logits of 30: align a base head that was trained with cross"
            " entropy first (`clinit align`)"
        )
    notes += _start_gaps(scenario, studies)
    if choose_device(studies[0].training.device).type == "cuda" and (problem := cupy_problem()):
        notes.append(
            f"{problem}: statistics and solves are computed on the CPU"
            ' (`pip install "clinit[cuda12]"` or `"clinit[cuda13]"`, as the driver is)'
        )
    return notes


def _check_room(scenario: Scenario, memory: HostMemory | None, study: Study) -> None:
    """Refuse batches that do not fit into memory, if features are on disk."""
    batch = study.stream.rows_per_batch if study.stream.iterations else 0
    gathered = 2 * STEPS_AT_ONCE * batch * scenario.train.row_bytes
    if memory is not None and gathered > memory.size_bytes:
        raise MachineError(
            f"the rows of {STEPS_AT_ONCE} updates, {batch:,} for each, and a copy of them take"
            f" {size_text(gathered)}, more than {memory}",
            remedy="Give a smaller --batch-size, or more memory (--memory; in Python, memory=).",
        )


def _class_gaps(scenario: Scenario, new: Source, study: Study) -> Iterator[str]:
    """Yield which classes lack images, a name of their own, or a row in the buffer."""
    names, first = scenario.class_names, scenario.num_base
    base, later = names[:first], names[first:]
    counts = scenario.train_counts
    left = "left out of a solved head" if study.is_solved else "not rehearsed"
    for those, which, what in (
        (base, counts[:first] == 0, f"base classes have no training image: {left}"),
        (new.class_names, new.train.counts() == 0, "new classes have no training image: left out"),
        (names, scenario.val_counts == 0, "classes have no validation image: not evaluated"),
        (later, np.isin(later, base), "new classes have the name of a base class: kept apart"),
    ):
        if found := list(compress(those, which)):
            yield f"{len(found):,} of {len(those):,} {what} ({examples(found)})"
    size, seen = study.stream.buffer, int(np.count_nonzero(counts[: scenario.learnt[-1].start]))
    if study.keeps_buffer and size and size < seen:
        yield (
            f"the buffer of {size:,} rows is smaller than the number of classes ({seen:,} before"
            " the last task): some have no row in it"
        )


def _start_gaps(scenario: Scenario, studies: Sequence[Study]) -> Iterator[str]:
    """Yield what new head rows cannot be calibrated on or judged by, and which images repeat."""
    study, stream, train = studies[0], studies[0].stream, scenario.train
    if any(each.start.scale == "calibrated" for each in studies) and (
        study.start.init_rows == "new"
        or (study.keeps_buffer and 0 in (stream.buffer, stream.buffer_per_class))
    ):
        yield (
            "initialisation sees no rows of earlier classes to calibrate new head rows against:"
            " they take the norm of the old ones, as with scale norm"
        )
    starts = [each.start for each in studies if each.start.init not in ("random", "zero")]
    if not starts and not study.is_solved:
        return
    new = np.flatnonzero(train.labels >= scenario.num_base)
    of_groups = one_of_each(train.labels[new], train.groups_of(new))
    if len(of_groups) < len(new):
        yield (
            f"of {len(new):,} training images of new classes, {len(new) - len(of_groups):,} repeat"
            " others (copies, crops or frames): each set counts as one when new rows are computed"
        )
    judged = any(
        (start.is_calibrated and start.calibration == "leave-one-out")
        or (start.reads_lambda and start.lam == "auto")
        for start in starts
    )
    if judged and not (np.bincount(of_groups) > 1).any():
        yield (
            "with a single training image per new class there is none to leave out: scale and"
            " lambda of new rows are guesses from old classes"
        )

"""Notes on missing data or hardware of an experiment, if the user can do something about it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import compress
from typing import Any

import numpy as np

from clinit.headtrain.heads.array import cupy_problem
from clinit.headtrain.protocol.stream.scenario import Scenario
from clinit.headtrain.protocol.stream.source import Source
from clinit.headtrain.protocol.study.parts import Stream
from clinit.headtrain.protocol.study.study import Study
from clinit.machine import choose_device
from clinit.words import examples, size_text


def data_notes(
    scenario: Scenario,
    base: Source,
    new: Source,
    studies: Sequence[Study],
    head_facts: Mapping[str, Any] | None = None,
) -> list[str]:
    """Return notes for the user, before training starts.

    Args:
        scenario: The data under one numbering.
        base: Features of the classes of the pretrained head.
        new: Features of the classes that arrive.
        studies: Resolved studies of one stream.
        head_facts: Facts about the pretrained head.
    """
    notes = [*base.notes, *new.notes, *_class_gaps(scenario, new, studies[0])]
    notes += _more_than_there_is(scenario, new, studies[0].stream)
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
            " entropy first (`clinit head align`)"
        )
    if choose_device(studies[0].training.device).type == "cuda" and (problem := cupy_problem()):
        notes.append(
            f"{problem}: statistics and solves are computed on the CPU (`clinit doctor` prints the"
            " package to install)"
        )
    return notes


def _more_than_there_is(scenario: Scenario, new: Source, stream: Stream) -> Iterator[str]:
    """Yield notes on settings that ask for more than there is, or keep too few images."""
    counts = new.train_counts[new.train_counts > 0]
    every, asked = stream.eval_every, stream.shots
    if every != "auto" and 0 < stream.iterations < every:
        yield (
            f"--eval-every {every:,} is more than the {stream.iterations:,} updates of a task: only"
            " its start and its end are evaluated"
        )
    if asked is not None and (fewer := np.count_nonzero(counts < asked)):
        yield (
            f"--shots {asked:,}: {fewer:,} of {len(counts):,} new classes have fewer training"
            f" images, {counts.min():,} or more, and give all of them"
        )
    last = scenario.learnt[-1].start if len(scenario.learnt) else 0
    old = scenario.train_counts[:last]
    kept = stream.buffer_per_class
    if kept is not None and (fewer := np.count_nonzero((old > 0) & (old < kept))):
        yield f"--buffer-per-class {kept:,}: {fewer:,} classes have fewer images, and keep them all"
    classes = np.count_nonzero(old)
    if kept is None and stream.buffer is not None and 0 < stream.buffer < classes:
        yield (
            f"--buffer {stream.buffer:,} is less than one image for each of the {classes:,}"
            " classes before the last task: some are not rehearsed"
        )


def _class_gaps(scenario: Scenario, new: Source, study: Study) -> Iterator[str]:
    """Yield notes on classes without images, or with the name of a base class."""
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

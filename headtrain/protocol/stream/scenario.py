"""The experiment's data under one numbering: base classes first, new classes as they arrive.

A scenario fixes which new classes arrive in which task, in which order, and their head rows.

Notes on missing data or hardware of an experiment, if the user can do something about it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import compress
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Int

from clinit.errors import ExperimentError, HeadError
from clinit.extract.cache.fingerprint import check_same_backbone
from clinit.extract.cache.head import Head
from clinit.extract.dataset.names import names_in, near_names
from clinit.files.text import TextFileError
from clinit.headtrain.heads.array import cupy_problem
from clinit.headtrain.heads.groups import Labels, Mask, by_class
from clinit.headtrain.heads.repeats import groups_of
from clinit.headtrain.heads.seeds import Draw, generator
from clinit.headtrain.protocol.stream.buffer import COPIED_SHARE, Pool
from clinit.headtrain.protocol.stream.source import Source
from clinit.headtrain.protocol.study.parts import Stream
from clinit.headtrain.protocol.study.study import Study
from clinit.machine import choose_device
from clinit.words import contrast_digests, examples, number_of, size_text

Classes = Int[np.ndarray, " classes"]
"""Labels of classes, each once."""


@dataclass(frozen=True, slots=True, eq=False)
class Task:
    """Classes that arrive together."""

    number: int
    """1 for the first task; 0 for the base classes."""
    classes: Classes
    """Labels in the new data, in order of arrival."""
    start: int
    """Head row of the first class; the other classes follow."""

    @property
    def stop(self) -> int:
        """Head row after the last class: the number of classes seen so far."""
        return self.start + len(self.classes)

    @property
    def rows(self) -> Int[np.ndarray, " classes"]:
        """Head rows of the classes."""
        return np.arange(self.start, self.stop)


def shuffled(classes: Classes, seed: int) -> Classes:
    """Return the classes in the order that `seed` determines."""
    return generator(seed, Draw.CLASS_ORDER).permutation(np.sort(classes)).astype(np.int64)


def split_into_tasks(order: Classes, *, tasks: int, first_row: int) -> tuple[Task, ...]:
    """Split the classes in their order of arrival; the first tasks take the remainder.

    Raises:
        ExperimentError: If there are more tasks than classes.
    """
    if tasks > len(order):
        raise ExperimentError(
            f"{number_of(tasks, 'task')}, but {number_of(len(order), 'new class')} with images",
            remedy=f"Ask for at most {number_of(len(order), 'task')} with --tasks.",
        )
    stream: list[Task] = []
    for number, part in enumerate(np.array_split(order, tasks), start=1):
        stream.append(Task(number, part, stream[-1].stop if stream else first_row))
    return tuple(stream)


def read_class_order(path: Path) -> tuple[str, ...]:
    """Read class names, as `names_in` does.

    Raises:
        ExperimentError: If the file is missing, contains no name or a name twice.
    """
    try:
        return names_in(path)
    except TextFileError as error:
        raise ExperimentError(
            f"cannot read the class order {path}: {error}",
            remedy="Give a text file with the name of one new class per line.",
        ) from error


def named_order(names: Sequence[str], class_names: Sequence[str], arriving: Classes) -> Classes:
    """Return the classes `arriving` in the order of `names`.

    A name of a class without training rows is allowed and has no effect.

    Args:
        names: All new classes, each once.
        class_names: The classes of the new data.
        arriving: The classes that have training rows.

    Raises:
        ExperimentError: If a name is unknown or repeated, or if a class is not named.
    """
    label_of = {name: label for label, name in enumerate(class_names)}
    expected = {class_names[label] for label in arriving}
    times = Counter(names)
    for found, problem in (
        ([name for name in times if name not in label_of], "not in the new data"),
        ([name for name, count in times.items() if count > 1], "named more than once"),
        (sorted(expected - times.keys()), "not named"),
    ):
        if found:
            raise ExperimentError(
                f"the class order does not fit: {number_of(len(found), 'class')} {problem}"
                f" ({examples(found)})"
                + _hint(near_names(found, class_names, "the order", "the new data")),
                remedy="Name every new class once, one per line, as `clinit manifest show"
                " CACHE/train/manifest.parquet --classes` does.",
            )
    return np.array([label_of[name] for name in names if name in expected], dtype=np.int64)


@dataclass(frozen=True, slots=True, eq=False)
class Scenario:
    """A stream of tasks after a pretrained head, or after none; every class is a head row."""

    num_base: int
    """Rows of the pretrained head; 0 if the stream starts from nothing."""
    tasks: tuple[Task, ...]
    """All planned tasks."""
    class_names: tuple[str, ...]
    """One name per head row."""
    train: Pool
    val: Pool
    stop_after: int | None = None
    """Number of tasks that are learnt; None: all."""

    @property
    def learnt(self) -> tuple[Task, ...]:
        """The tasks that are learnt."""
        return self.tasks[: self.stop_after]

    @property
    def num_classes(self) -> int:
        """Rows of the head after the last task."""
        return len(self.class_names)

    @property
    def train_counts(self) -> Int[np.ndarray, " classes"]:
        """Number of training images of each head row."""
        return self.train.counts(self.num_classes)

    @property
    def val_counts(self) -> Int[np.ndarray, " classes"]:
        """Number of validation images of each head row."""
        return self.val.counts(self.num_classes)

    @property
    def ends(self) -> tuple[int, ...]:
        """Head row after the last class of the base, and of each task."""
        return (self.num_base, *(task.stop for task in self.tasks))

    @property
    def task_of_row(self) -> Int[np.ndarray, " classes"]:
        """Task in which each head row arrives; 0 for the base."""
        sizes = [self.num_base, *(len(task.classes) for task in self.tasks)]
        return np.repeat(np.arange(len(sizes)), sizes)


def check_head(head: Head, base: Source) -> None:
    """Check that the head reads the features of its base.

    Raises:
        HeadError: If width or backbone of head and features differ.
    """
    of_head, of_base = f"width {head.dim}", f"width {base.train.dim}"
    if head.dim == base.train.dim:
        if not base.fingerprint.fields or base.fingerprint.fits(head.fingerprint):
            return
        of_head, of_base = contrast_digests(head.fingerprint, base.fingerprint.backbone_identifier)
    raise HeadError(
        f"the head is for features of {of_head}, the base cache contains features of {of_base}",
        remedy="Use the head that `clinit extract` stored in the base cache.",
    )


def _hint(text: str | None) -> str:
    return "" if text is None else f"; {text}"


def map_to_head(base: Source, head: Head) -> Int[np.ndarray, " classes"]:
    """Return the head row of each base class; -1 for a class with neither head row nor data.

    Raises:
        ExperimentError: If the head has no class names, or lacks a class that has data.
        HeadError: If two rows of the head have the same name.
    """
    names = head.class_names
    remedy = (
        "Give one name per row, all different: `clinit extract --head-classes FILE` names the rows"
        " of a network, `clinit.save_head` writes a head file with names."
    )
    if names is None:
        raise ExperimentError(
            f"the {head.num_classes:,} rows of the base head have no class names", remedy=remedy
        )
    if names == base.class_names:
        return np.arange(len(names))
    if twice := [name for name, count in Counter(names).items() if count > 1]:
        raise HeadError(
            f"the base head has more than one row of the same name ({examples(twice)})",
            remedy=remedy,
        )
    row_of = {name: row for row, name in enumerate(names)}
    rows = np.array([row_of.get(name, -1) for name in base.class_names], dtype=np.int64)
    has_data = base.train.counts() + base.val.counts() > 0
    if unknown := [base.class_names[i] for i in np.flatnonzero(has_data & (rows < 0))]:
        swapped = len(unknown) == np.count_nonzero(has_data)
        raise ExperimentError(
            f"{len(unknown):,} classes of the base cache are not in its head"
            f" ({examples(unknown)}){': are --base and --new swapped?' if swapped else ''}"
            + _hint(near_names(unknown, names, "the cache", "the head")),
            remedy="Leave them out of the base cache, or extract it with --head-classes FILE"
            " if the head names its classes in another way.",
        )
    return rows


def build_scenario(base: Source, new: Source, head: Head, stream: Stream) -> Scenario:
    """Match the base data with the head and order the new classes.

    With `no_base` and its head, the head begins with the classes of the first task. New classes
    without a training row are left out, because nothing could be learnt about them.

    Raises:
        CacheError: If the two sides contain features of different backbones.
        HeadError: If the head does not fit these features.
        ExperimentError: If the head's classes are unknown, the class order does not list the new
            classes, or there are too many tasks.
    """
    if base.class_names:
        widths = base.train.dim, new.train.dim
        check_same_backbone(base.fingerprint, new.fingerprint, widths)
    check_head(head, base)
    base_rows = map_to_head(base, head)
    arriving = np.flatnonzero(new.train.counts())
    order = shuffled(arriving, stream.seed)
    if stream.class_order is not None:
        order = named_order(stream.class_order, new.class_names, arriving)
    tasks = split_into_tasks(order, tasks=stream.tasks, first_row=head.num_classes)
    new_rows = np.full(len(new.class_names), -1, dtype=np.int64)
    for task in tasks:
        new_rows[task.classes] = task.rows
    train_rows = new_rows[new.train.labels]
    if stream.shots is not None:
        train_rows[~drawn_shots(new.train.labels, stream.shots, stream.seed)] = -1

    def groups() -> Int[np.ndarray, " rows"]:
        """Return the group of each row; base rows repeat each other only if the base has groups."""
        of_base = np.arange(len(base.train.labels))
        if base.train.groups is not None:
            of_base = groups_of(base.train)
        return np.concatenate([of_base, len(of_base) + groups_of(new.train)])

    limits = (int(COPIED_SHARE * side.memory) for side in (base, new) if side.memory)
    room = min(limits, default=None)
    train, val = ((each.features, base_rows[each.labels]) for each in (base.train, base.val))
    tested = new.val.features, new_rows[new.val.labels]
    names = (new.class_names[label] for task in tasks for label in task.classes)
    return Scenario(
        num_base=head.num_classes,
        tasks=tasks,
        class_names=(*(head.class_names or ()), *names),
        train=Pool(train, (new.train.features, train_rows), room=room, groups=groups),
        val=Pool(val, tested, room=room),
        stop_after=stream.stop_after,
    )


def drawn_shots(labels: Labels, shots: int, seed: int) -> Mask:
    """Mark `shots` rows of each class, or all of a smaller class; more shots only add rows.

    Args:
        labels: Class of each row, as numbered in the data, so that the draw does not depend on the
            order of arrival.
        shots: Rows per class.
        seed: Seed of the stream.
    """
    marked = np.zeros(len(labels), dtype=bool)
    for rows in by_class(labels):
        random = generator(seed, Draw.SHOTS, int(labels[rows[0]]))
        marked[random.permutation(rows)[:shots]] = True
    return marked


def data_notes(
    scenario: Scenario, base: Source, new: Source, studies: Sequence[Study], facts: dict[str, Any]
) -> list[str]:
    """Return notes for the user, before training starts.

    Args:
        scenario: The data under one numbering.
        base: Features of the classes of the pretrained head.
        new: Features of the classes that arrive.
        studies: Resolved studies of one stream.
        facts: Facts about the pretrained head.
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
    aligned = (facts.get("alignment") or {}).get("loss")
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
    counts = new.train.counts()
    counts = counts[counts > 0]
    every, asked = stream.eval_every, stream.shots
    if every != "auto" and 0 < stream.iterations < every:
        yield (
            f"--eval-every {every:,} is more than the {stream.iterations:,} updates of a task: only"
            " its start and its end are evaluated"
        )
    size, rows = stream.batch_size or 0, len(scenario.train.labels)
    if stream.iterations and size > max(256, rows):  # the default may exceed small data
        yield f"--batch-size {size:,}: an update reads each of {rows:,} training images repeatedly"
    if asked is not None and (fewer := np.count_nonzero(counts < asked)):
        yield (
            f"--shots {asked:,}: {fewer:,} of {len(counts):,} new classes have fewer training"
            f" images, {counts.min():,} or more, and give all of them"
        )
    last = scenario.learnt[-1].start if len(scenario.learnt) else 0
    classes = np.count_nonzero(scenario.train_counts[:last])
    if stream.buffer is not None and 0 < stream.buffer < classes:
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

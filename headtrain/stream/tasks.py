"""Which new classes arrive in which task, in what order, and which head row each one gets."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from jaxtyping import Int

from clinit.errors import ExperimentError
from clinit.files.text import TextFileError, lines_of, read_text
from clinit.headtrain.examples import examples
from clinit.headtrain.stream.seeds import Draw, generator


@dataclass(frozen=True, slots=True, eq=False)
class Task:
    """Classes that arrive together."""

    number: int
    """1 for the first task; 0 stands for the base classes."""
    classes: Int[np.ndarray, " classes"]
    """Labels in the new data, in order of arrival."""
    start: int
    """Head row of the first of them; the others follow."""

    @property
    def stop(self) -> int:
        """Head row after the last of them: the number of classes seen so far."""
        return self.start + len(self.classes)

    @property
    def rows(self) -> Int[np.ndarray, " classes"]:
        """Head rows of the classes."""
        return np.arange(self.start, self.stop)


def shuffled(classes: Int[np.ndarray, " classes"], seed: int) -> Int[np.ndarray, " classes"]:
    """Return the classes in the order that `seed` stands for."""
    return generator(seed, Draw.CLASS_ORDER).permutation(np.sort(classes)).astype(np.int64)


def split_into_tasks(
    order: Int[np.ndarray, " classes"], *, tasks: int, first_row: int
) -> tuple[Task, ...]:
    """Split the classes in their order of arrival; the first tasks take the remainder.

    Raises:
        ExperimentError: If there are more tasks than classes.
    """
    if tasks > len(order):
        raise ExperimentError(
            f"{tasks} tasks were asked for, but only {len(order)} new classes have training rows",
            remedy=f"Ask for at most {len(order)} tasks with --tasks.",
        )
    stream: list[Task] = []
    for number, part in enumerate(np.array_split(order, tasks), start=1):
        stream.append(Task(number, part, stream[-1].stop if stream else first_row))
    return tuple(stream)


def read_class_order(path: Path) -> tuple[str, ...]:
    """Read class names, one per line; empty lines do not count.

    Raises:
        ExperimentError: If there is no such file, or it holds no name.
    """
    try:
        names = tuple(lines_of(read_text(path)))
    except TextFileError as error:
        raise ExperimentError(
            f"cannot read the class order {path}: {error}",
            remedy="Give a text file with the name of one new class per line.",
        ) from error
    if not names:
        raise ExperimentError(
            f"the class order {path} names no class",
            remedy="Write the name of one new class per line.",
        )
    return names


def named_order(
    names: Sequence[str], class_names: Sequence[str], arriving: Int[np.ndarray, " classes"]
) -> Int[np.ndarray, " classes"]:
    """Return the classes `arriving` in the order of `names`.

    A name of a class without training rows is allowed and has no effect.

    Args:
        names: All new classes, each once.
        class_names: The classes of the new data.
        arriving: Those that have training rows.

    Raises:
        ExperimentError: If a name is unknown or comes twice, or a class is not named.
    """
    label_of = {name: label for label, name in enumerate(class_names)}
    expected = {class_names[label] for label in arriving}
    if unknown := [name for name in names if name not in label_of]:
        raise _refused(f"{_are(unknown)} not in the new data", unknown)
    if twice := [name for name, count in Counter(names).items() if count > 1]:
        raise _refused(f"{_are(twice)} named more than once", twice)
    if missing := sorted(expected - set(names)):
        raise _refused(f"{_are(missing)} not named", missing)
    return np.array([label_of[name] for name in names if name in expected], dtype=np.int64)


def _are(names: Sequence[str]) -> str:
    return f"{len(names):,} {'class is' if len(names) == 1 else 'classes are'}"


def _refused(what: str, names: Sequence[str]) -> ExperimentError:
    return ExperimentError(
        f"the class order does not fit: {what} ({examples(names)})",
        remedy="Name every new class once, one per line, as `clinit cache show` spells them.",
    )

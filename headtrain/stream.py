"""The stream: which new classes arrive in which task, and which head row each one gets."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Int

from clinit.errors import ExperimentError
from clinit.headtrain.seeds import Draw, generator


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

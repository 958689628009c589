"""Events of an experiment, for its observers: a progress bar, a log, or none."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from clinit.headtrain.heads.start.scale import Initialisation
from clinit.headtrain.protocol.study.study import Study


@dataclass(frozen=True, slots=True)
class Noted:
    """A note for the user about the data, the settings or the run."""

    note: str


@dataclass(frozen=True, slots=True)
class BankStarted:
    """Bank `number` of `banks` begins: heads of one stream, trained side by side."""

    runs: Sequence[Study]
    number: int
    banks: int


@dataclass(frozen=True, slots=True)
class TaskStarted:
    """Task `task` of `tasks` begins, with `iterations` updates."""

    task: int
    tasks: int
    iterations: int


@dataclass(frozen=True, slots=True, eq=False)
class Initialised:
    """The new rows of one head are written."""

    task: int
    head_id: str
    start: Initialisation
    seconds: Mapping[str, float]
    """Seconds per part of the work, see `clinit.headtrain.protocol.train.task_start`."""


@dataclass(frozen=True, slots=True)
class Stepped:
    """The bank has done `steps` more updates."""

    steps: int


@dataclass(frozen=True, slots=True)
class Evaluated:
    """The bank is evaluated after `iteration` updates of a task."""

    task: int
    iteration: int
    loss_new: dict[str, float]
    """Mean loss of each head on a sample of the new training rows."""


@dataclass(frozen=True, slots=True)
class Progressed:
    """Work other than updates has finished `done` of `total` units."""

    what: str
    done: int
    total: int


_OfTask = TaskStarted | Initialised | Stepped | Evaluated
Event = BankStarted | Noted | Progressed | _OfTask
Observer = Callable[[Event], None]


def ignore(event: Event) -> None:
    """Ignore the event."""

"""What happens in an experiment: events for observers, and facts of a method for its learner.

A method yields facts while it learns a task. Each fact names the `phase` that the time since the
previous fact belongs to, so that the learner alone measures time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from jaxtyping import Float

from clinit.headtrain.heads.start.scale import Initialisation
from clinit.headtrain.protocol.study.study import Study
from clinit.headtrain.protocol.train.evaluate import BankEvaluation
from clinit.observer import Event


@dataclass(frozen=True, slots=True)
class BankStarted(Event):
    """Bank `number` of `banks` begins: heads of one stream, trained side by side."""

    runs: Sequence[Study]
    number: int
    banks: int


@dataclass(frozen=True, slots=True)
class RunStarted(Event):
    """A run begins that is trained alone."""

    place: Path
    """The folder of its record."""


@dataclass(frozen=True, slots=True)
class RunsRecorded(Event):
    """`runs` more runs are recorded."""

    runs: int


@dataclass(frozen=True, slots=True)
class TaskStarted(Event):
    """Task `task` of `tasks` begins, with `iterations` updates."""

    task: int
    tasks: int
    iterations: int


@dataclass(frozen=True, slots=True)
class Evaluated(Event):
    """The bank is evaluated after `iteration` updates of a task."""

    task: int
    iteration: int
    loss_new: dict[str, float]
    """Mean loss of each head on a sample of the new training rows."""


@dataclass(frozen=True, slots=True)
class Stepped(Event):
    """The bank has done `steps` more updates. This event is a fact, too."""

    phase: ClassVar[str] = "train"
    steps: int
    waits: bool = True
    """Whether the time of these updates includes waiting for the device."""


@dataclass(frozen=True, slots=True, eq=False)
class Started:
    """The first rows of the next head are written."""

    phase: ClassVar[str] = "initialise"
    start: Initialisation
    seconds: Mapping[str, float]
    """Seconds per part of the work, see `clinit.headtrain.protocol.train.task_start`."""


@dataclass(frozen=True, slots=True, eq=False)
class Trained:
    """The mean losses of new and old rows in updates from number `first` on; NaN without rows."""

    phase: ClassVar[str] = "train"
    first: int
    losses: Float[np.ndarray, "iterations heads 2"]


@dataclass(frozen=True, slots=True, eq=False)
class Tested:
    """Correct answers of the heads, and the mean loss of each on a sample of the new rows."""

    phase: ClassVar[str] = "evaluate"
    iteration: int
    """Number of updates of the task so far."""
    found: BankEvaluation
    losses: Float[np.ndarray, " heads"]


@dataclass(frozen=True, slots=True)
class Diverged:
    """A head has stopped being of use, with the reason."""

    phase: ClassVar[str] = "initialise"
    head: int
    why: str


@dataclass(frozen=True, slots=True)
class Done:
    """A piece of work of a phase is done, with fields of run.json about the task."""

    phase: str
    facts: Mapping[str, Any] = field(default_factory=dict)
    of_heads: Sequence[Mapping[str, Any]] = ()
    """Such fields of each head; empty if there are none."""


@dataclass(frozen=True, slots=True, eq=False)
class Paused:
    """The run can resume from here."""

    phase: ClassVar[str] = "store"
    iteration: int
    """Number of updates of the task so far, or `FINISHED`."""
    state: Mapping[str, Any]
    """Tensors and plain values, from which the method resumes."""


FINISHED = -1
"""The iteration of a pause between two tasks."""
Fact = Stepped | Started | Trained | Tested | Diverged | Done | Paused

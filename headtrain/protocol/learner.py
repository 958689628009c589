"""Learn one task after another, and log the results.

The loop is the same for every learner. A `Method` defines the work of each task on its heads:

    resume     restore the state of a killed run, and skip its finished tasks
    begin      add the rows of the task's classes, read their features
    start      initialise these rows, or solve the whole head
    train      update and evaluate
    end        clean up, before the next task
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from jaxtyping import Float

from clinit.extract.cache.head import Head
from clinit.headtrain.heads.array import torch_stream
from clinit.headtrain.heads.linear import Rows
from clinit.headtrain.heads.start.scale import Initialisation
from clinit.headtrain.heads.statistics.class_statistics import ClassStatistics
from clinit.headtrain.protocol import events
from clinit.headtrain.protocol.record.task_log import Point, TaskEntry
from clinit.headtrain.protocol.stream.buffer import TaskRows
from clinit.headtrain.protocol.stream.scenario import Scenario, Task
from clinit.headtrain.protocol.stream.task_plan import Schedule, TaskPlan
from clinit.headtrain.protocol.study.study import Study, names_of
from clinit.headtrain.protocol.train.heads import LabelledRows
from clinit.headtrain.protocol.train.task_start import warm_up
from clinit.stopwatch import Stopwatch

Diagnose = Callable[[ClassStatistics, Rows], dict[str, Any]]
"""Measures a head on statistics of its training rows; returns plain values by name."""


class Method:
    """The work of a learner: heads of one stream on stored features, or a network with a head."""

    device: torch.device

    def resume(self, learner: Learner) -> int:
        """Restore the state of a killed run; return how many tasks it has finished."""
        return 0

    def begin(self, run: TaskRun) -> None:
        """Prepare for a task."""

    def start(self, run: TaskRun) -> Iterable[tuple[Initialisation, Mapping[str, float]]]:
        """Write the first rows of each head; yield their initialisation and its seconds."""
        raise NotImplementedError

    def train(self, run: TaskRun) -> None:
        """Learn the task; call `run.evaluated` at each evaluation point, including the first."""
        raise NotImplementedError

    def end(self, run: TaskRun) -> None:
        """Finish a task."""

    def diagnoses(self, run: TaskRun, diagnose: Diagnose) -> list[dict[str, Any]]:
        """Measure each head in its present state, on its training rows."""
        raise NotImplementedError

    def seconds(self, spent: Mapping[str, float]) -> Float[np.ndarray, " heads"]:
        """Return the time of each head, from the seconds of all phases."""
        raise NotImplementedError

    def head(self, index: int, names: tuple[str, ...]) -> Head | None:
        """Copy one head with its class names; None if it is not a linear layer."""
        raise NotImplementedError


@dataclass(slots=True, eq=False)
class TaskRun:
    """A task while it is learnt."""

    learner: Learner
    task: Task
    rows: TaskRows
    """The rows that the task is learnt from."""
    seen: TaskRows
    """The rows that the start may use; the object `rows` itself if these are the same rows."""
    schedule: Schedule
    entry: TaskEntry
    data: LabelledRows | None = None
    """The features of `rows`; None until they are read."""

    @property
    def watch(self) -> Stopwatch:
        """Adds up the time of the run by phase."""
        return self.learner.watch

    def evaluated(self, iteration: int, found: Any, losses: Float[np.ndarray, " heads"]) -> None:
        """Log an evaluation: the correct answers of each head, and its new-task loss.

        Args:
            iteration: Number of updates of the task so far.
            found: `correct`, `correct_in_task` and `mistakes` of the heads.
            losses: Mean loss of each head on a sample of the new rows.
        """
        learner, number = self.learner, self.task.number
        self.entry.mistakes = found.mistakes or ()
        self.entry.points.append(
            Point(iteration, found.correct, found.correct_in_task, losses, learner.seconds)
        )
        by_name = dict(zip(learner.ids, losses.tolist(), strict=True))
        for name, loss in by_name.items():
            if not np.isfinite(loss) and not learner.studies[0].is_closed:
                why = f"its loss is {loss} after {iteration:,} updates of task {number}"
                learner.diverge(name, why)
        learner.observe(events.Evaluated(number, iteration, by_name))


@dataclass(eq=False)
class Learner:
    """Takes a method through the tasks of a stream."""

    scenario: Scenario
    plan: TaskPlan
    studies: Sequence[Study]
    method: Method
    observe: events.Observer
    diagnose: Diagnose | None = None
    entries: list[TaskEntry] = field(default_factory=list)
    diverged: dict[str, str] = field(default_factory=dict)
    """A note for each head whose loss has stopped being a number."""

    def __post_init__(self) -> None:
        """Warm up the device before time is measured."""
        self.ids = names_of(self.studies)
        warm_up(self.method.device)
        self.watch = Stopwatch(self.method.device)

    @property
    def seconds(self) -> Float[np.ndarray, " heads"]:
        """Time of each head: its own starts, and its share of the work for all heads."""
        return self.method.seconds(self.watch.seconds)

    def diverge(self, name: str, why: str) -> None:
        """Note that a head has diverged, once per head."""
        if name not in self.diverged:
            self.diverged[name] = f"{name} has diverged: {why}"
            self.observe(events.Noted(self.diverged[name]))

    def head(self, index: int) -> Head | None:
        """Copy one head in its present state; None if it is not a linear layer."""
        with torch_stream(self.method.device):
            return self.method.head(index, self.scenario.class_names)

    def learn(self) -> None:
        """Learn all tasks, or the tasks that a killed run has not finished."""
        finished = self.method.resume(self)
        for task in self.scenario.learnt[finished:]:
            self._learn(task)

    def _initialise(self, run: TaskRun) -> None:
        """Start all heads; keep facts only, because starts can refer to rows on the device."""
        with self.watch.phase("initialise"), torch_stream(self.method.device):
            for name, (start, seconds) in zip(self.ids, self.method.start(run), strict=True):
                run.entry.starts.append(start.facts())
                run.entry.start_seconds.append(dict(seconds))
                self.observe(events.Initialised(run.task.number, name, start, seconds))

    def _learn(self, task: Task) -> None:
        """Learn one task, from its beginning or from the step that a killed run has reached."""
        shared = self.studies[0]
        updates = 0 if shared.is_closed else shared.stream.iterations
        self.observe(events.TaskStarted(task.number, len(self.scenario.learnt), updates))
        with self.watch.phase("prepare"):
            rows = self.plan.rows(task)
            schedule = self.plan.schedule(rows)
            seen = self.plan.start_rows(task, rows)
        has_begun = len(self.entries) == task.number
        if not has_begun:
            self.entries.append(TaskEntry.begin(self.scenario, task, rows, seen, schedule))
        run, method = TaskRun(self, task, rows, seen, schedule, self.entries[-1]), self.method
        method.begin(run)
        if not has_begun:
            self._initialise(run)
        method.train(run)
        method.end(run)
        if self.diagnose is not None:
            with self.watch.phase("diagnose"), torch_stream(method.device):
                run.entry.diagnoses = method.diagnoses(run, self.diagnose)

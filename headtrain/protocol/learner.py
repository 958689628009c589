"""Learn one task after another, and log the results.

The loop is the same for every method. A `Method` yields facts while it learns a task; the learner
times, logs and reports them, and notes heads that diverge.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from hashlib import sha256
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int

from clinit.errors import ExperimentError
from clinit.extract.cache.head import Head
from clinit.headtrain.heads.array import torch_stream
from clinit.headtrain.heads.linear import Rows
from clinit.headtrain.heads.statistics.class_statistics import ClassStatistics
from clinit.headtrain.protocol import events
from clinit.headtrain.protocol.events import Fact
from clinit.headtrain.protocol.record.task_log import Point, TaskEntry
from clinit.headtrain.protocol.stream.buffer import TaskRows
from clinit.headtrain.protocol.stream.scenario import Scenario, Task, build_scenario
from clinit.headtrain.protocol.stream.source import Source
from clinit.headtrain.protocol.stream.task_plan import Lesson, TaskPlan
from clinit.headtrain.protocol.study.study import Study, names_of
from clinit.headtrain.protocol.train.heads import LabelledRows
from clinit.headtrain.protocol.train.task_start import Starts, warm_up
from clinit.machine import Stopwatch, choose_device
from clinit.observer import Observer, Warned, ignore
from clinit.setting import Imported

Diagnose = Callable[[ClassStatistics, Rows], dict[str, Any]]
"""Measures a head on statistics of its training rows; returns plain values by name."""


@dataclass(frozen=True, eq=False)
class Experiment:
    """A stream of tasks, the head that it starts from, and the studies that learn it."""

    head: Head
    scenario: Scenario
    plan: TaskPlan
    studies: tuple[Study, ...]
    """Resolved; they differ at most in the settings `study.PER_HEAD`."""
    starts: dict[tuple[str, str, int], Starts] = field(default_factory=dict)
    """Starts in the first task, by device, rows and seed: also of earlier experiments on `head`."""

    @classmethod
    def of(cls, head: Head, base: Source, new: Source, studies: Sequence[Study]) -> Experiment:
        """Match the data with the head, and order the new classes.

        Raises:
            ClinitError: As `build_scenario`.
        """
        resolved = tuple(study.resolved() for study in studies)
        scenario = build_scenario(base, new, head, resolved[0].stream)
        return cls(head, scenario, TaskPlan(scenario, resolved[0]), resolved)

    @property
    def study(self) -> Study:
        """The study whose stream all studies share."""
        return self.studies[0]

    @cached_property
    def device(self) -> torch.device:
        """The device of the studies."""
        return choose_device(self.study.training.device)

    @cached_property
    def _tests(self) -> LabelledRows:
        val, rows = self.scenario.val, self.scenario.val.rows_between(0, self.scenario.num_classes)
        return LabelledRows.on(self.device, val.features(rows), val.labels[rows])

    def starts_on(self, seen: TaskRows) -> Starts:
        """Return what has been started on these rows of the first task."""
        rows = sha256(seen.rows.tobytes() + seen.labels.tobytes()).hexdigest()
        return self.starts.setdefault((str(self.device), rows, self.study.stream.seed), {})

    def seen_tests(self, task: Task) -> LabelledRows:
        """Return the test rows of the classes seen at the end of a task, sorted by label."""
        return self._tests.first(int(self.scenario.val_counts[: task.stop].sum()))

    def training(self, rows: Int[np.ndarray, " rows"]) -> LabelledRows:
        """Read training rows; a negative number, for a row that is drawn, is left out."""
        train, stored = self.scenario.train, rows[rows >= 0]
        return LabelledRows.on(self.device, train.features(stored), train.labels[stored])


class Method:
    """The work of a learner: heads of one stream on stored features, or a network with a head."""

    device: torch.device

    @property
    def changed(self) -> dict[str, np.ndarray] | None:
        """The parameters of the network that training has changed; None if it is frozen."""
        return None

    def learn(self, lesson: Lesson) -> Iterator[Fact]:
        """Learn a task, and yield what is done.

        A `Started` for each head comes first, a `Tested` at each evaluation point.
        """
        raise NotImplementedError

    def seconds(self, spent: dict[str, float]) -> Float[np.ndarray, " heads"]:
        """Return the time of each head, from the seconds of all phases."""
        raise NotImplementedError

    def head(self, index: int) -> Head:
        """Copy one head with its class names."""
        raise NotImplementedError


@dataclass(slots=True, eq=False)
class Log:
    """The state of a run: everything that a killed run must restore."""

    entries: list[TaskEntry] = field(default_factory=list)
    diverged: dict[str, str] = field(default_factory=dict)
    """A note for each head whose loss has stopped being a number."""
    seconds: dict[str, float] = field(default_factory=dict)
    """Seconds of each phase."""
    finished: int = 0
    """Number of finished tasks."""

    def __post_init__(self) -> None:
        """Let seconds of further phases begin at zero."""
        self.seconds = defaultdict(float, self.seconds)


@dataclass(eq=False)
class Learner:
    """Takes a method through the tasks of a stream."""

    experiment: Experiment
    method: Method
    observer: Observer = ignore
    log: Log = field(default_factory=Log)
    store: Callable[[Log, events.Paused], None] = lambda log, paused: None
    """Stores the state of a run that can resume."""

    def __post_init__(self) -> None:
        """Warm up the device before time is measured."""
        self.ids = names_of(self.experiment.studies)
        warm_up(self.method.device)
        self.watch = Stopwatch(self.method.device, self.log.seconds)

    @property
    def seconds(self) -> Float[np.ndarray, " heads"]:
        """Time of each head: its own starts, and its share of the work for all heads."""
        return self.method.seconds(self.log.seconds)

    def head(self, index: int) -> Head:
        """Copy one head in its present state."""
        with torch_stream(self.method.device):
            return self.method.head(index)

    def learn(self) -> None:
        """Learn all tasks, or the tasks that a killed run has not finished."""
        for task in self.experiment.scenario.learnt[self.log.finished :]:
            self._learn(task)

    def _learn(self, task: Task) -> None:
        """Learn one task, from its beginning or from the step that a killed run has reached."""
        experiment, entries = self.experiment, self.log.entries
        tasks, steps = len(experiment.scenario.learnt), experiment.study.stream.iterations
        self.observer(events.TaskStarted(task.number, tasks, steps))
        with self.watch.phase("prepare"):
            lesson = experiment.plan.lesson(task)
        if len(entries) < task.number:
            entries.append(TaskEntry.begin(experiment.scenario, lesson, len(self.ids)))
        started = time.perf_counter()
        for fact in self.method.learn(lesson):
            waits = not isinstance(fact, events.Stepped) or fact.waits
            self.watch.add(fact.phase, started, waits=waits)
            self._take(fact, entries[-1])
            started = time.perf_counter()

    def _take(self, fact: Fact, entry: TaskEntry) -> None:
        match fact:
            case events.Started(start, seconds):
                entry.starts.append(start.facts())  # a start can refer to rows on the device
                entry.start_seconds.append(dict(seconds))
            case events.Stepped():
                self.observer(fact)
            case events.Trained(first, losses):
                entry.losses[first : first + len(losses)] = losses
            case events.Tested():
                self._evaluated(fact, entry)
            case events.Diverged(head, why):
                self._diverge(self.ids[head], why)
            case events.Done():
                entry.facts |= fact.facts
                for index, each in enumerate(fact.of_heads):
                    entry.of_heads[index] |= each
            case events.Paused(iteration):
                self.log.finished += iteration == events.FINISHED
                self.store(self.log, fact)

    def _evaluated(self, fact: events.Tested, entry: TaskEntry) -> None:
        counts = fact.found.correct, fact.found.correct_in_task
        point = Point(fact.iteration, *counts, fact.losses, self.seconds, fact.found.mistakes)
        entry.points.append(point)
        by_name = dict(zip(self.ids, fact.losses.tolist(), strict=True))
        for study, (name, loss) in zip(self.experiment.studies, by_name.items(), strict=True):
            if np.isfinite(loss) or study.is_closed:
                continue
            after = f"after {fact.iteration:,} updates of task {entry.task}"
            own = study.training.loss
            if isinstance(own, Imported) and not fact.iteration and name not in self.log.diverged:
                told = f"the loss {own.path} is {loss} {after}"
                raise ExperimentError(told, remedy="Return finite losses for finite logits.")
            self._diverge(name, f"its loss is {loss} {after}")
        self.observer(events.Evaluated(entry.task, fact.iteration, by_name))

    def _diverge(self, name: str, why: str) -> None:
        """Note that a head has diverged, once per head."""
        if name not in self.log.diverged:
            self.log.diverged[name] = f"{name} has diverged: {why}"
            self.observer(Warned(self.log.diverged[name]))

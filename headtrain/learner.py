"""A bank that learns one task after another, and records what happens."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int

from clinit.extract.cache.head import Head
from clinit.headtrain.array import torch_stream
from clinit.headtrain.correction import Correction, bias_corrected, weight_aligned
from clinit.headtrain.events import (
    Evaluated,
    Initialised,
    LambdaChosen,
    Noted,
    Observer,
    Stepped,
    TaskStarted,
)
from clinit.headtrain.record.task_log import Point, TaskEntry
from clinit.headtrain.rows import Rows
from clinit.headtrain.start.new_rows import NewClasses, random_task_rows
from clinit.headtrain.start.task_start import SOLVED, TaskStart, warm_up
from clinit.headtrain.statistics.class_statistics import ClassStatistics, RunningStatistics
from clinit.headtrain.stream.buffer import Pool, TaskRows
from clinit.headtrain.stream.scenario import Scenario, Task
from clinit.headtrain.stream.task_plan import TaskPlan
from clinit.headtrain.study import Study, names_of
from clinit.headtrain.train.evaluate import evaluate, mean_losses
from clinit.headtrain.train.heads import Bank
from clinit.headtrain.train.loop import train_task
from clinit.headtrain.train.rows import LabelledRows
from clinit.machine import choose_device
from clinit.stopwatch import Stopwatch

Diagnose = Callable[[ClassStatistics, Rows], dict[str, Any]]
"""Measures a head on the statistics of the rows it was trained on; plain values by name."""


class Learner:
    """The heads of one call, their buffer and their test rows."""

    def __init__(
        self,
        scenario: Scenario,
        head: Head,
        studies: Sequence[Study],
        observer: Observer,
        diagnose: Diagnose | None = None,
    ) -> None:
        self.ids = names_of(studies)
        self._studies = tuple(studies)
        self._shared = studies[0]
        device = choose_device(self._shared.training.device)
        warm_up(device)
        self.watch = Stopwatch(device)
        self.entries: list[TaskEntry] = []
        self.diverged: dict[str, str] = {}
        """A note for each head whose loss has stopped being a number."""
        self._scenario = scenario
        self._observe = observer
        self._diagnose = diagnose
        self._fingerprint = head.fingerprint
        self._own_seconds = np.zeros(len(studies))
        self._bank = Bank(Rows.of_head(head), [study.training for study in studies], device)
        self._plan = TaskPlan(scenario, self._shared)
        self._plan.check_correction()
        self._statistics = RunningStatistics()
        tested = scenario.val.rows_between(0, scenario.num_classes)
        self._test = self._on_device(scenario.val, tested)
        if self._shared.start.head_width == "full":
            for task in scenario.tasks:
                self._add_random_rows(task)

    @property
    def device(self) -> torch.device:
        """The device that the bank is trained on."""
        return self._bank.device

    @property
    def seconds(self) -> Float[np.ndarray, " heads"]:
        """Time of each head: its own initialisations, and an equal share of what heads share."""
        shared = self.watch.seconds["train"] + self.watch.seconds["evaluate"]
        return self._own_seconds + shared / self._bank.num_heads

    def notes(self, index: int) -> list[str]:
        """Return what was found on the way about one head."""
        name = self.ids[index]
        return [self.diverged[name]] if name in self.diverged else []

    def learn(self, task: Task) -> None:
        """Initialise the rows of the task's classes, then train on it and evaluate."""
        stream = self._shared.stream
        self._observe(TaskStarted(task.number, len(self._scenario.learnt), stream.iterations))
        if self._shared.start.head_width == "grow":
            self._add_random_rows(task)
        with self.watch.phase("prepare"):
            rows = self._plan.rows(task)
            schedule = self._plan.schedule(rows)
            seen = self._plan.start_rows(task, rows)
            data = self._task_rows(rows) if seen is rows else None
        entry = TaskEntry.begin(self._scenario, task, rows, seen, schedule)
        self.entries.append(entry)
        with self.watch.phase("initialise"), torch_stream(self.device):
            self._initialise(task, seen, data, entry)
        if data is None:  # not sooner: beside the rows that heads start from
            with self.watch.phase("prepare"):
                data = self._task_rows(rows)
        entry.losses = train_task(
            self._bank,
            data,
            rows,
            schedule,
            stream,
            evaluate=lambda iteration, sample: self._evaluate(task, iteration, sample, entry),
            stepped=lambda steps: self._observe(Stepped(steps)),
            watch=self.watch,
        )
        if self._diagnose is not None:
            with self.watch.phase("diagnose"), torch_stream(self.device):
                entry.diagnoses = self._diagnoses(task, data, rows, self._diagnose)

    def head(self, index: int) -> Head:
        """Copy one head as it is now, with the names of its classes."""
        with torch_stream(self.device):
            rows = self._bank.rows(index)
            names = self._scenario.class_names[: len(rows.bias)]
            return rows.as_head(names, self._fingerprint)

    def _diagnoses(
        self, task: Task, data: LabelledRows, rows: TaskRows, diagnose: Diagnose
    ) -> list[dict[str, Any]]:
        """Measure each head as it is, over the rows that the task was learnt from."""
        groups = self._scenario.train.groups_of(rows.rows)
        statistics = self._statistics.of(rows, data.arrays(), task.stop, "class", groups)
        heads = [self._bank.rows(index) for index in range(self._bank.num_heads)]
        return [diagnose(statistics, head.between(0, task.stop)) for head in heads]

    def _task_rows(self, rows: TaskRows) -> LabelledRows:
        return self._on_device(self._scenario.train, rows.rows)

    def _on_device(self, pool: Pool, rows: Int[np.ndarray, " rows"]) -> LabelledRows:
        return LabelledRows.on(self.device, pool.features(rows), pool.labels[rows])

    def _add_random_rows(self, task: Task) -> None:
        self._bank.grow(random_task_rows(self._shared.stream.seed, task, self._bank.dim))

    def _initialise(
        self, task: Task, seen: TaskRows, data: LabelledRows | None, entry: TaskEntry
    ) -> None:
        """Write the new rows of each head, or all of its rows where it is solved.

        `data` holds the rows `seen` where they are on the device already.
        """
        groups = cache(lambda: self._scenario.train.groups_of(seen.rows))
        shared = TaskStart(
            task,
            self._scenario.num_base,
            lambda: (data or self._task_rows(seen)).arrays(),
            seen.labels,
            SOLVED.get(self._shared.stream.method),
            self.device,
            lambda curve: self._observe(LambdaChosen(task.number, curve)),
            lambda features, weighting: self._statistics.of(
                seen, features, task.stop, weighting, groups()
            ),
            groups=groups,
            heads_alike=len(self.entries) == 1,
        )
        for index, study in enumerate(self._studies):
            start, seconds = shared.start(study, self._bank.rows(index))
            self._bank.write(index, task.stop - start.rows.bias.shape[0], start.rows)
            self._own_seconds[index] += sum(seconds.values())
            entry.starts.append(start.facts())
            entry.start_seconds.append(seconds)
            self._observe(Initialised(task.number, self.ids[index], start, seconds))

    def _correct(self, task: Task, entry: TaskEntry) -> None:
        """Correct the trained rows of the task; note what the heads label right until then."""
        with self.watch.phase("evaluate"):
            tested = self._seen_tests(task)
            correct = evaluate(self._bank, tested, self._scenario.ends).correct
        origins = pairwise((0, *self._scenario.ends[: task.number + 1]))
        entry.uncorrected = np.stack([correct[:, slice(*rows)].sum(1) for rows in origins], axis=1)
        with self.watch.phase("train"), torch_stream(self.device):
            corrected = self._correction(task)
            for index in range(self._bank.num_heads):
                found = corrected(self._bank.rows(index))
                self._bank.write(index, task.start, found.rows)
                entry.corrections.append(found.facts())

    def _correction(self, task: Task) -> Callable[[Rows], Correction]:
        """Return what corrects a head after a task."""
        if self._shared.training.correct == "wa":
            return lambda head: weight_aligned(head, task.start, task.stop)
        rows = self._plan.correction_rows(task)
        features = self._task_rows(rows).arrays()
        return lambda head: bias_corrected(
            NewClasses(features, rows.labels, head, task.start, task.stop)
        )

    def _seen_tests(self, task: Task) -> LabelledRows:
        return self._test.first(int(self._scenario.val_counts[: task.stop].sum()))

    def _evaluate(self, task: Task, iteration: int, sample: LabelledRows, entry: TaskEntry) -> None:
        ends = iteration == self._shared.stream.iterations
        if ends and self._shared.training.correct != "none":
            self._correct(task, entry)
        with self.watch.phase("evaluate"):
            found = evaluate(
                self._bank, self._seen_tests(task), self._scenario.ends, list_mistakes=ends
            )
            loss_new = mean_losses(self._bank, sample)
        entry.mistakes = found.mistakes or ()
        entry.points.append(
            Point(iteration, found.correct, found.correct_in_task, loss_new, self.seconds)
        )
        for name, loss in zip(self.ids, loss_new, strict=True):
            if not np.isfinite(loss) and name not in self.diverged:
                self.diverged[name] = (
                    f"{name} has diverged: its loss is {loss} after {iteration:,} updates of task"
                    f" {task.number}"
                )
                self._observe(Noted(self.diverged[name]))
        losses = dict(zip(self.ids, loss_new.tolist(), strict=True))
        self._observe(Evaluated(task.number, iteration, losses))

"""A closed form that sees one task after another, and records what a bank would record.

It has the face of `clinit.headtrain.learner.Learner`. The rows of the base classes come in a first
pass; then each task brings the rows of its classes, and no row is seen again. The pretrained head
gives the names of the base classes, and nothing else.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from jaxtyping import Float, Int

from clinit.errors import ExperimentError
from clinit.extract.cache.head import Head
from clinit.headtrain.array import library, placed, torch_stream
from clinit.headtrain.closed.interface import Arrival, Solution, evaluate, mean_loss
from clinit.headtrain.closed.methods import LINEAR, closed_form
from clinit.headtrain.events import (
    Evaluated,
    Initialised,
    LambdaChosen,
    Noted,
    Observer,
    Progressed,
    TaskStarted,
)
from clinit.headtrain.learner import Diagnose
from clinit.headtrain.record.format import headless
from clinit.headtrain.record.task_log import Point, TaskEntry
from clinit.headtrain.rows import Rows
from clinit.headtrain.start.scale import Initialisation
from clinit.headtrain.start.task_start import warm_up
from clinit.headtrain.statistics.class_statistics import ClassStatistics
from clinit.headtrain.stream.buffer import Pool, TaskRows
from clinit.headtrain.stream.scenario import Scenario, Task
from clinit.headtrain.stream.task_plan import TaskPlan
from clinit.headtrain.study import Study, names_of
from clinit.headtrain.train.rows import LabelledRows
from clinit.machine import choose_device
from clinit.stopwatch import Stopwatch


class ClosedLearner:
    """One closed form; studies of it differ at most in the loss that its scores are judged by."""

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
        method = studies[0].stream.method
        if diagnose is not None and method not in LINEAR:
            raise ExperimentError(
                f"--diagnose measures linear heads on the features, and {method} is none",
                remedy="Leave --diagnose out.",
            )
        self.device = choose_device(studies[0].training.device)
        warm_up(self.device)
        self.watch = Stopwatch(self.device)
        self.entries: list[TaskEntry] = []
        self._notes: list[str] = []
        self._scenario = scenario
        self._observe = observer
        self._diagnose = diagnose
        self._fingerprint = head.fingerprint
        self._plan = TaskPlan(scenario, studies[0])
        with torch_stream(self.device):
            self._form = closed_form(studies[0], placed(np.zeros(head.dim), self.device))
        tested = scenario.val.rows_between(0, scenario.num_classes)
        self._test_labels = scenario.val.labels[tested]
        self._test = self._on_device(scenario.val, tested)

    @property
    def seconds(self) -> Float[np.ndarray, " heads"]:
        """Time of each run: alone it would have taken as long."""
        spent = self.watch.seconds["initialise"] + self.watch.seconds["evaluate"]
        return np.full(len(self._studies), spent)

    def notes(self, index: int) -> list[str]:
        """Return what was found on the way, and why there is no head where there is none."""
        why = headless(self._studies[index].settings())
        return [*self._notes, *([f"the record holds no head: {why}"] if why else [])]

    def learn(self, task: Task) -> None:
        """Learn the classes of a task, those of the base before the first one, and evaluate."""
        self._observe(TaskStarted(task.number, len(self._scenario.learnt), 0))
        own = Stopwatch(self.device)
        if not self.entries:
            self._learn_base(own)
        with self.watch.phase("prepare"):
            rows = self._plan.rows(task)
            data = self._on_device(self._scenario.train, rows.rows)
            schedule = self._plan.schedule(rows)
        entry = TaskEntry.begin(self._scenario, task, rows, rows, schedule)
        self.entries.append(entry)
        with self.watch.phase("initialise"), torch_stream(self.device):
            groups = self._scenario.train.groups_of(rows.rows)
            arrival = Arrival(
                *(task.number, data.arrays(), rows.labels, task.stop, own, self._progress), groups
            )
            solution = self._form.learn(arrival)
        self._write_down(task, entry, solution, own)
        with self.watch.phase("evaluate"), torch_stream(self.device):
            self._evaluate(task, entry, data, rows)
        del data, arrival  # a diagnosis copies all rows seen
        if self._diagnose is not None:
            with self.watch.phase("diagnose"), torch_stream(self.device):
                diagnosis = self._diagnose(self._all_rows_seen(task), self._rows())
            entry.diagnoses = [diagnosis] * len(self.ids)

    def head(self, index: int) -> Head | None:
        """Copy the linear layer as it is now; None where there is none."""
        stored = self._form.head()
        if stored is None:
            return None
        with torch_stream(self.device):
            names = self._scenario.class_names[: stored.rows.bias.shape[0]]
            return stored.rows.as_head(names, self._fingerprint, feature_map=stored.feature_map)

    def _rows(self) -> Rows:
        stored = self._form.head()
        assert stored is not None
        return stored.rows

    def _all_rows_seen(self, task: Task) -> ClassStatistics:
        """Return the statistics of all rows that the head follows from."""
        train = self._scenario.train
        rows = train.rows_between(0, task.stop)
        data = self._on_device(train, rows)
        return ClassStatistics.of(data.arrays(), train.labels[rows], num_classes=task.stop)

    def _learn_base(self, own: Stopwatch) -> None:
        train, stop = self._scenario.train, self._scenario.num_base
        with self.watch.phase("prepare"):
            rows = self._plan.base_rows()
            data = self._on_device(train, rows)
        with self.watch.phase("initialise"), torch_stream(self.device):
            solution = self._form.learn(
                Arrival(0, data.arrays(), train.labels[rows], stop, own, self._progress)
            )
        self._note(solution)

    def _write_down(self, task: Task, entry: TaskEntry, solution: Solution, own: Stopwatch) -> None:
        self._note(solution)
        if solution.curve is not None:
            self._observe(LambdaChosen(task.number, solution.curve))
        with torch_stream(self.device):
            computed = library(placed(np.zeros(0), self.device))
        start = Initialisation(
            Rows(np.empty((0, 0)), np.empty(0)),
            lam=solution.lam,
            curve=solution.curve,
            library=computed,
        )
        for name in self.ids:
            entry.starts.append(start)
            entry.start_seconds.append(dict(own.seconds))
            self._observe(Initialised(task.number, name, start, own.seconds))

    def _evaluate(self, task: Task, entry: TaskEntry, data: LabelledRows, rows: TaskRows) -> None:
        seen = int(self._scenario.val_counts[: task.stop].sum())
        found = evaluate(
            self._form,
            self._test.first(seen).arrays(),
            self._test_labels[:seen],
            self._scenario.ends,
            task.stop,
        )
        chosen = rows.loss_sample(self._studies[0].stream.seed)
        sample = data.take(torch.from_numpy(chosen)).arrays()
        losses = [
            mean_loss(self._form, sample, rows.labels[chosen], study.training.loss)
            for study in self._studies
        ]
        correct, in_task = (
            np.tile(counts, (len(losses), 1)) for counts in (found.correct, found.correct_in_task)
        )
        entry.mistakes = [found.mistakes] * len(losses)
        entry.losses = np.empty((0, len(losses), 2))
        entry.points.append(Point(0, correct, in_task, np.array(losses), self.seconds))
        self._observe(Evaluated(task.number, 0, dict(zip(self.ids, losses, strict=True))))

    def _note(self, solution: Solution) -> None:
        for note in solution.notes:
            self._notes.append(note)
            self._observe(Noted(note))

    def _progress(self, what: str, done: int, total: int) -> None:
        self._observe(Progressed(what, done, total))

    def _on_device(self, pool: Pool, rows: Int[np.ndarray, " rows"]) -> LabelledRows:
        return LabelledRows.on(self.device, pool.features(rows), pool.labels[rows])

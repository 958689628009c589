"""Methods on stored features: heads trained by gradients, and closed forms.

If a stream has base classes, a closed form reads the features of their images first, then the
features of the images of each task; it reads the features of each image once. From the pretrained
head it takes only the names of the base classes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int

from clinit.extract.cache.head import Head
from clinit.headtrain.heads.array import library, placed, torch_stream
from clinit.headtrain.heads.closed.interface import Arrival, Solution
from clinit.headtrain.heads.closed.solved import SOLVED
from clinit.headtrain.heads.linear import Rows
from clinit.headtrain.heads.start.new_rows import NewClasses, random_task_rows
from clinit.headtrain.heads.start.scale import Initialisation
from clinit.headtrain.heads.statistics.class_statistics import ClassStatistics
from clinit.headtrain.protocol.closed_form import closed_form, mean_loss
from clinit.headtrain.protocol.closed_form import evaluate as evaluate_form
from clinit.headtrain.protocol.events import Progressed, Stepped
from clinit.headtrain.protocol.learner import Diagnose, Method, TaskRun
from clinit.headtrain.protocol.stream.buffer import TaskRows
from clinit.headtrain.protocol.stream.scenario import Scenario, Task
from clinit.headtrain.protocol.stream.task_plan import TaskPlan
from clinit.headtrain.protocol.study.study import Study
from clinit.headtrain.protocol.train.anchor import STRENGTHS, Anchor, judges, set_aside
from clinit.headtrain.protocol.train.correction import bias_corrected, class_weights, weight_aligned
from clinit.headtrain.protocol.train.evaluate import Evaluation, evaluate, mean_losses
from clinit.headtrain.protocol.train.heads import Bank, LabelledRows
from clinit.headtrain.protocol.train.loop import train_task
from clinit.headtrain.protocol.train.old_classes import OldClasses
from clinit.headtrain.protocol.train.past import Past, RunningStatistics
from clinit.headtrain.protocol.train.task_start import TaskStart
from clinit.machine import choose_device
from clinit.stopwatch import Stopwatch


class _OnFeatures(Method):
    """A method that reads stored features, tested on the classes seen so far."""

    def __init__(
        self, scenario: Scenario, plan: TaskPlan, head: Head, studies: Sequence[Study]
    ) -> None:
        self.device = choose_device(studies[0].training.device)
        self._scenario = scenario
        self._plan = plan
        self._studies = tuple(studies)
        self._shared = studies[0]
        self._fingerprint = head.fingerprint
        val, tested = scenario.val, scenario.val.rows_between(0, scenario.num_classes)
        self._test = LabelledRows.on(self.device, val.features(tested), val.labels[tested])
        self._set_up(head)

    def _set_up(self, head: Head) -> None:
        raise NotImplementedError

    def _seen_tests(self, task: Task) -> LabelledRows:
        return self._test.first(int(self._scenario.val_counts[: task.stop].sum()))

    def _training_rows(self, rows: Int[np.ndarray, " rows"]) -> LabelledRows:
        train = self._scenario.train
        return LabelledRows.on(self.device, train.features(rows), train.labels[rows])

    def _read(self, run: TaskRun) -> None:
        with run.watch.phase("prepare"):
            rows = run.rows.rows
            run.data = self._training_rows(rows[rows >= 0])


class GradientHeads(_OnFeatures):
    """A bank of heads that are initialised and trained, or solved as a whole at each task."""

    def _set_up(self, head: Head) -> None:
        self._plan.check_correction()
        self.came_with = self._scenario.num_base or self._scenario.tasks[0].stop
        """Number of rows that came with the head or, without base classes, with the first task."""
        self._own_seconds = np.zeros(len(self._studies))
        trainings = [study.training for study in self._studies]
        self._bank = Bank(Rows.of_head(head), trainings, self.device)
        base = self._scenario.base if self._shared.is_solved else None
        self._statistics = RunningStatistics(base)
        seed = self._shared.stream.seed
        self._past = Past(self._scenario, self._plan, self.device, seed=seed)
        self._unstarted: dict[int, Rows] = {}
        """Heads as they were before the start of the task, if their anchor strength is `auto`."""
        if self._shared.start.head_width == "full":
            for task in self._scenario.tasks:
                self._grow(task)

    def seconds(self, spent: Mapping[str, float]) -> Float[np.ndarray, " heads"]:
        """Return the seconds of each head's own starts plus an equal share of all other work."""
        shared = spent.get("train", 0.0) + spent.get("evaluate", 0.0)
        return self._own_seconds + shared / self._bank.num_heads

    def head(self, index: int, names: tuple[str, ...]) -> Head:
        """Copy one head with its class names."""
        rows = self._bank.rows(index)
        return rows.as_head(names[: len(rows.bias)], self._fingerprint)

    def begin(self, run: TaskRun) -> None:
        """Add rows for the task's classes; read features if starts and training use the same."""
        if self._shared.start.head_width == "grow":
            self._grow(run.task)
        if run.seen is run.rows:
            self._read(run)

    def start(self, run: TaskRun) -> Iterator[tuple[Initialisation, Mapping[str, float]]]:
        """Write the new rows of each head, or all of its rows if it is solved."""
        task, shared = run.task, self._task_start(run, run.seen)
        for index, study in enumerate(self._studies):
            head = self._bank.rows(index)
            if study.is_held and study.training.anchor_strength == "auto":
                self._unstarted[index] = head
            start, seconds = shared.start(study, head)
            self._bank.write(index, task.stop - start.rows.bias.shape[0], start.rows)
            self._own_seconds[index] += sum(seconds.values())
            yield start, seconds

    def train(self, run: TaskRun) -> None:
        """Train all heads on the same batches."""
        if run.data is None:  # not read earlier, when the features of the starts were in memory
            self._read(run)
        assert run.data is not None
        drawn, old = self._shared.draws_old_rows, None
        if any(study.keeps_statistics for study in self._studies):
            with run.watch.phase("train"), torch_stream(self.device):
                old = self._past.before(run.task.number)
        if drawn and old is not None:
            run.entry.facts["statistics_numbers"] = old.numbers
        anchors = self._anchors(run, old)
        run.entry.losses = train_task(
            self._bank,
            run.data,
            run.rows,
            run.schedule,
            self._shared.stream,
            evaluate=lambda iteration, sample: self._evaluate(run, iteration, sample),
            stepped=lambda steps: run.learner.observe(Stepped(steps)),
            watch=run.watch,
            anchors=anchors,
            drawn=old if drawn else None,
        )

    def diagnoses(self, run: TaskRun, diagnose: Diagnose) -> list[dict[str, Any]]:
        """Measure each head in its present state, on the rows that the task was learnt from."""
        assert run.data is not None
        stop = run.task.stop
        if self._shared.draws_old_rows:
            statistics = self._past.statistics(run.task.number)
        else:
            groups = self._past.groups(run.rows)
            statistics = self._statistics.of(run.rows, run.data.arrays(), stop, "class", groups)
        heads = [self._bank.rows(index) for index in range(self._bank.num_heads)]
        return [diagnose(statistics, head.between(0, stop)) for head in heads]

    def _task_start(self, run: TaskRun, seen: TaskRows) -> TaskStart:
        is_whole, data = seen is run.seen, run.data if seen is run.rows else None
        return TaskStart(
            run.task,
            self.came_with,
            seen,
            lambda: (data or self._past.rows(seen)).arrays(),
            lambda: self._past.groups(seen),
            SOLVED.get(self._shared.stream.method),
            self.device,
            # Drawn rows differ from task to task, so that sums cannot be reused.
            self._statistics if is_whole and (seen.rows >= 0).all() else RunningStatistics(),
            heads_alike=run.task.number == 1,
        )

    def _anchors(self, run: TaskRun, old: OldClasses | None) -> list[Anchor | None]:
        found: list[Anchor | None] = []
        for index, study in enumerate(self._studies):
            training = study.training
            of_head = old if training.anchor == "moments" else None
            facts: dict[str, Any] = {"strength": training.anchor_strength}
            is_held = study.is_held and (training.anchor == "l2" or of_head is not None)
            if is_held and training.anchor_strength == "auto":
                facts = self._chosen(run, index, of_head)
            found.append(Anchor(facts["strength"], of_head) if is_held else None)
            facts |= {} if of_head is None else {"numbers": of_head.numbers}
            run.entry.anchors.append(facts if is_held else None)
        return found

    def _chosen(self, run: TaskRun, index: int, old: OldClasses | None) -> dict[str, Any]:
        """Choose the strength of the anchor of a head; return it with the loss of each strength."""
        assert run.data is not None
        study, data, watch = self._studies[index], run.rows, Stopwatch(self.device)
        drawn = self._past.before(data.number) if self._shared.draws_old_rows else None
        with run.watch.phase("initialise"), watch.phase("anchor"):
            aside = set_aside(data, self._past, study.stream.seed)
            judging = judges(data, run.data, aside, self._past, study.stream.seed)
            unit = 1.0 if old else float(judging.features.float().square().mean())
            anchors = [Anchor(unit * each, old) for each in STRENGTHS]
            others = run.seen.part(~np.isin(run.seen.rows, data.rows[aside]))
            before, stop = self._unstarted.pop(index), run.task.stop
            with torch_stream(self.device):
                start, _ = self._task_start(run, others).start(study, before)
            bank = Bank(before, [study.training] * len(anchors), self.device)
            for head in range(bank.num_heads):
                bank.write(head, stop - start.rows.bias.shape[0], start.rows)
            schedule = self._plan.schedule(data.part(~aside))
            batches = np.flatnonzero(~aside)[schedule.batches]
            train_task(
                bank, run.data, data, replace(schedule, batches=batches), study.stream,
                evaluate=lambda iteration, sample: None, stepped=lambda steps: None,
                watch=Stopwatch(), anchors=anchors, drawn=drawn,
            )  # fmt: skip
            weights = class_weights(judging.labels.cpu().numpy(), run.task.start, stop)
            losses = mean_losses(bank, judging, torch.from_numpy(weights).to(self.device))
        self._own_seconds[index] += watch.seconds["anchor"]
        tried = [anchor.strength for anchor in anchors]
        best = tried[int(np.nan_to_num(losses, nan=np.inf).argmin())]
        return {"strength": best, "tried": tried, "losses": losses.tolist()}

    def _grow(self, task: Task) -> None:
        self._bank.grow(
            random_task_rows(
                self._shared.stream.seed, task.number, len(task.classes), self._bank.dim
            )
        )

    def _evaluate(self, run: TaskRun, iteration: int, sample: LabelledRows) -> None:
        is_last = iteration == self._shared.stream.iterations
        if is_last and run.task.start and self._shared.training.correct != "none":
            self._correct(run)
        with run.watch.phase("evaluate"):
            tested, ends = self._seen_tests(run.task), self._scenario.ends
            found = evaluate(self._bank, tested, ends, list_mistakes=is_last)
            losses = mean_losses(self._bank, sample)
        run.evaluated(iteration, found, losses)

    def _correct(self, run: TaskRun) -> None:
        """Count the correct answers of the trained heads, then correct their rows of the task."""
        task, entry, ends = run.task, run.entry, self._scenario.ends
        with run.watch.phase("evaluate"):
            correct = evaluate(self._bank, self._seen_tests(task), ends).correct
        # Without base classes, `ends` begins with 0 too; `fromkeys` drops the repeat.
        origins = pairwise(dict.fromkeys((0, *ends[: task.number + 1])))
        entry.uncorrected = np.stack([correct[:, slice(*rows)].sum(1) for rows in origins], axis=1)
        with run.watch.phase("train"), torch_stream(self.device):
            aside = self._plan.correction_rows(task)
            features = self._training_rows(aside.rows).arrays()
            for index in range(self._bank.num_heads):
                head = self._bank.rows(index)
                if self._shared.training.correct == "wa":
                    found = weight_aligned(head, task.start, task.stop)
                else:
                    new = NewClasses(features, aside.labels, head, task.start, task.stop)
                    found = bias_corrected(new)
                self._bank.write(index, task.start, found.rows)
                entry.corrections.append(found.facts)


class ClosedForm(_OnFeatures):
    """One closed form; its studies differ at most in the loss by which scores are measured."""

    def _set_up(self, head: Head) -> None:
        with torch_stream(self.device):
            self._form = closed_form(self._shared, placed(np.zeros(head.dim), self.device))

    def seconds(self, spent: Mapping[str, float]) -> Float[np.ndarray, " heads"]:
        """Return the whole time for each run, because a single run would have taken as long."""
        return np.full(len(self._studies), spent.get("initialise", 0) + spent.get("evaluate", 0))

    def head(self, index: int, names: tuple[str, ...]) -> Head | None:
        """Copy the linear layer in its present state; None if scores are not linear."""
        stored = self._form.head()
        if stored is None:
            return None
        names = names[: stored.rows.bias.shape[0]]
        return stored.rows.as_head(names, self._fingerprint, feature_map=stored.feature_map)

    def begin(self, run: TaskRun) -> None:
        """Read the features; before the first task, learn the base classes."""
        self._watch = Stopwatch(self.device)
        if run.task.number == 1 and self._scenario.num_base:
            with run.watch.phase("prepare"):
                rows = self._scenario.train.rows_between(0, self._scenario.num_base)
                data = self._training_rows(rows)
            with run.watch.phase("initialise"), torch_stream(self.device):
                labels = self._scenario.train.labels[rows]
                base = self._scenario.base
                self._learn(run, 0, data, labels, self._scenario.num_base, statistics=base)
        self._read(run)

    def start(self, run: TaskRun) -> Iterator[tuple[Initialisation, Mapping[str, float]]]:
        """Learn the classes of the task."""
        assert run.data is not None
        groups = self._scenario.train.groups_of(run.rows.rows)
        task = run.task
        labels = run.rows.labels
        solution = self._learn(run, task.number, run.data, labels, task.stop, groups=groups)
        start = Initialisation(
            Rows(np.empty((0, 0)), np.empty(0)),
            lam=solution.lam,
            curve=solution.curve,
            library=library(placed(np.zeros(0), self.device)),
        )
        for _ in self._studies:
            yield start, self._watch.seconds

    def train(self, run: TaskRun) -> None:
        """Evaluate, because nothing is trained."""
        assert run.data is not None
        rows, form = run.rows, self._form
        with run.watch.phase("evaluate"), torch_stream(self.device):
            tested = self._seen_tests(run.task)
            labels = tested.labels.cpu().numpy()
            ends = self._scenario.ends
            found = evaluate_form(form, tested.arrays(), labels, ends, run.task.stop)
            chosen = rows.loss_sample(self._shared.stream.seed)
            sample, named = run.data.take(torch.from_numpy(chosen)).arrays(), rows.labels[chosen]
            losses = [
                mean_loss(form, sample, named, study.training.loss) for study in self._studies
            ]
        run.data = None  # to free memory, because a diagnosis copies all rows seen
        count = len(losses)
        run.entry.losses = np.empty((0, count, 2))
        assert found.mistakes is not None
        correct, in_task = (
            np.tile(each, (count, 1)) for each in (found.correct, found.correct_in_task)
        )
        found = Evaluation(correct, in_task, found.mistakes * count)
        run.evaluated(0, found, np.array(losses))

    def diagnoses(self, run: TaskRun, diagnose: Diagnose) -> list[dict[str, Any]]:
        """Measure the linear layer on all rows seen, once for all studies."""
        stored, stop = self._form.head(), run.task.stop
        assert stored is not None
        train = self._scenario.train
        rows = train.rows_between(0, stop)
        data = self._training_rows(rows)
        statistics = ClassStatistics.of(data.arrays(), train.labels[rows], num_classes=stop)
        return [diagnose(statistics, stored.rows)] * len(self._studies)

    def _learn(
        self,
        run: TaskRun,
        number: int,
        data: LabelledRows,
        labels: Int[np.ndarray, " rows"],
        num_classes: int,
        **more: Any,
    ) -> Solution:
        def progress(what: str, done: int, total: int) -> None:
            run.learner.observe(Progressed(what, done, total))

        return self._form.learn(
            Arrival(number, data.arrays(), labels, num_classes, self._watch, progress, **more)
        )

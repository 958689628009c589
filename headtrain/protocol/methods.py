"""Methods on stored features: heads trained by gradients, and closed forms.

If a stream has base classes, a closed form reads the features of their images first, then the
features of the images of each task; it reads the features of each image once. From the pretrained
head it takes only the names of the base classes.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from clinit.errors import MachineError
from clinit.extract.cache.head import Head
from clinit.headtrain.heads.array import as_array, as_tensor, library, placed, torch_stream
from clinit.headtrain.heads.closed.methods import SOLVED, Arrival, ClosedForm, SimpleCil, Slda
from clinit.headtrain.heads.closed.ranpac import Ranpac
from clinit.headtrain.heads.linear import Rows
from clinit.headtrain.heads.start.new_rows import Drawn, random_task_rows
from clinit.headtrain.heads.start.scale import Initialisation
from clinit.headtrain.heads.statistics.class_statistics import ClassStatistics
from clinit.headtrain.protocol.events import Done, Fact, Started, Stepped, Tested, Trained
from clinit.headtrain.protocol.learner import Diagnose, Experiment, Method
from clinit.headtrain.protocol.stream.buffer import TaskRows
from clinit.headtrain.protocol.stream.scenario import Scenario, Task
from clinit.headtrain.protocol.stream.task_plan import Lesson
from clinit.headtrain.protocol.study.parts import Training
from clinit.headtrain.protocol.study.study import Study
from clinit.headtrain.protocol.train.evaluate import evaluate, mean_losses
from clinit.headtrain.protocol.train.heads import Bank, BankLogits, LabelledRows
from clinit.headtrain.protocol.train.loop import TaskSteps
from clinit.headtrain.protocol.train.past import (
    STRENGTHS,
    Anchor,
    OldClasses,
    Past,
    RunningStatistics,
    class_weights,
    judges,
    set_aside,
)
from clinit.headtrain.protocol.train.task_start import TaskStart
from clinit.machine import Stopwatch, choose_device, free_memory
from clinit.observer import Observer, ignore
from clinit.words import size_text


class GradientHeads(Method):
    """A bank of heads that are initialised and trained, or solved as a whole at each task."""

    def __init__(
        self,
        experiment: Experiment,
        diagnose: Diagnose | None = None,
        came_with: int | None = None,
        drawn: Drawn | None = None,
    ) -> None:
        """Begin with copies of the head.

        Args:
            experiment: The stream and the studies.
            diagnose: Measures each head at the end of each task.
            came_with: Number of rows that came with the head; default: all of its rows or, without
                base classes, the rows of the first task.
            drawn: How rows of old classes came about that were drawn, if any.
        """
        scenario, plan, studies = experiment.scenario, experiment.plan, experiment.studies
        self.device = experiment.device
        self._experiment, self._diagnose = experiment, diagnose
        self._shared = experiment.study
        self._how_drawn = drawn
        self._came_with = came_with or scenario.num_base or scenario.tasks[0].stop
        self._own_seconds = np.zeros(len(studies))
        self._lams: list[float | None] = [None] * len(studies)
        trainings = [study.training for study in studies]
        self._bank = Bank(Rows.of_head(experiment.head), trainings, self.device)
        self._statistics = RunningStatistics()
        self._past = Past(scenario, plan, self.device, seed=self._shared.stream.seed)
        if self._shared.start.head_width == "full":
            for task in scenario.tasks:
                self._grow(task)

    def seconds(self, spent: Mapping[str, float]) -> Float[np.ndarray, " heads"]:
        """Return the seconds of each head's own starts plus an equal share of all other work."""
        shared = spent.get("train", 0.0) + spent.get("evaluate", 0.0)
        return self._own_seconds + shared / self._bank.num_heads

    def head(self, index: int) -> Head:
        """Copy one head with its class names."""
        rows, names = self._bank.rows(index), self._experiment.scenario.class_names
        return rows.as_head(names[: len(rows.bias)], self._experiment.head.fingerprint)

    def learn(self, lesson: Lesson) -> Iterator[Fact]:
        """Start all heads, or solve them; train them on the same batches."""
        if self._shared.start.head_width == "grow":
            self._grow(lesson.task)
        rows, seen = lesson.rows, lesson.seen
        data = self._experiment.training(rows.rows) if seen is rows else None
        yield Done("prepare")
        with torch_stream(self.device):
            before = {
                index: self._bank.rows(index)
                for index, study in enumerate(self._experiment.studies)
                if study.is_held and study.training.anchor_strength == "auto"
            }
        yield from self._start(lesson, data)
        yield Done("initialise")  # the last start, whose features it holds, is of no more use
        if data is None:  # not earlier, when the features of the starts were in memory
            data = self._experiment.training(lesson.rows.rows)
            yield Done("prepare")
        old = None
        if any(study.keeps_statistics for study in self._experiment.studies):
            with torch_stream(self.device):
                old = self._past.before(lesson.task.number)
        draws = self._shared.draws_old_rows
        yield Done("train", {"statistics_numbers": old.numbers} if draws and old else {})
        anchors = yield from self._anchors(lesson, data, old, before)
        yield from self._train(lesson, data, anchors)
        if self._diagnose is not None:
            with torch_stream(self.device):
                found = self._diagnoses(lesson, data, self._diagnose)
            yield Done("diagnose", of_heads=[{"diagnosis": each} for each in found])

    def _grow(self, task: Task) -> None:
        seed, classes = self._shared.stream.seed, len(task.classes)
        self._bank.grow(random_task_rows(seed, task.number, classes, self._bank.dim))

    def started(self, lesson: Lesson) -> Iterator[Initialisation]:
        """Only start the heads of a task, without training; yield their initialisations."""
        self._grow(lesson.task)
        for each in self._start(lesson, None):
            yield each.start

    def _start(self, lesson: Lesson, data: LabelledRows | None) -> Iterator[Started]:
        """Write the new rows of each head, or all of its rows if it is solved."""
        shared, stop = self._task_start(lesson, lesson.seen, data), lesson.task.stop
        with torch_stream(self.device):
            found = shared.start_all(self._experiment.studies, self._bank.rows, self._lams)
            for index, (start, seconds) in enumerate(found):
                self._lams[index] = start.lam or self._lams[index]
                self._bank.write(index, stop - start.rows.bias.shape[0], start.rows)
                self._own_seconds[index] += sum(seconds.values())
        yield from (Started(*each) for each in found)

    def _task_start(self, lesson: Lesson, seen: TaskRows, data: LabelledRows | None) -> TaskStart:
        # Drawn rows differ from task to task, so that sums cannot be reused.
        is_summed = seen is lesson.seen and (seen.rows >= 0).all()
        return TaskStart(
            lesson.task,
            self._came_with,
            seen,
            lambda: (data or self._past.rows(seen)).arrays(),
            lambda: self._past.groups(seen),
            SOLVED.get(self._shared.stream.method),
            self.device,
            self._statistics if is_summed else RunningStatistics(),
            starts=self._experiment.starts_on(seen) if lesson.task.number == 1 else None,
            drawn=self._how_drawn,
        )

    def _anchors(
        self, lesson: Lesson, data: LabelledRows, old: OldClasses | None, before: Mapping[int, Rows]
    ) -> Generator[Fact, None, list[Anchor | None]]:
        studies = self._experiment.studies
        found: list[Anchor | None] = [None] * len(studies)
        told: list[dict[str, Any]] = [{} for _ in studies]
        for index, study in enumerate(studies):
            if old is not None and study.is_held:
                facts: dict[str, Any] = {"strength": study.training.anchor_strength}
                if facts["strength"] == "auto":
                    facts = self._chosen(lesson, data, index, old, before[index])
                    yield Done("initialise")
                found[index] = Anchor(facts["strength"], old)
                told[index] = {"anchor": {**facts, "numbers": old.numbers}}
        yield Done("prepare", of_heads=told)
        return found

    def _chosen(
        self, lesson: Lesson, data: LabelledRows, index: int, old: OldClasses, before: Rows
    ) -> dict[str, Any]:
        """Choose the strength of the anchor of a head; return it with the loss of each strength."""
        study, watch, task = self._experiment.studies[index], Stopwatch(self.device), lesson.task
        rows, seed = lesson.rows, study.stream.seed
        with watch.phase("anchor"):
            aside = set_aside(rows, self._past, seed)
            judging = judges(rows, data, aside, self._past, seed)
            anchors = [Anchor(each, old) for each in STRENGTHS]
            others = lesson.seen.part(~np.isin(lesson.seen.rows, rows.rows[aside]))
            with torch_stream(self.device):
                start, _ = self._task_start(lesson, others, None).start(
                    study, before, self._lams[index]
                )
            bank = Bank(before, [study.training] * len(anchors), self.device)
            bank.states = [deepcopy(self._bank.states[index]) for _ in anchors]
            for head in range(bank.num_heads):
                bank.write(head, task.stop - start.rows.bias.shape[0], start.rows)
            schedule = self._experiment.plan.schedule(rows.part(~aside))
            batches = np.flatnonzero(~aside)[schedule.batches]
            without = replace(lesson, schedule=replace(schedule, batches=batches))
            steps = TaskSteps.of(bank, data, without, anchors, self._drawn(task))
            for _ in steps.until(len(batches)):
                pass
            weights = class_weights(judging.labels.cpu().numpy(), task.start, task.stop)
            losses = mean_losses(bank, judging, torch.from_numpy(weights).to(self.device))
        self._own_seconds[index] += watch.seconds["anchor"]
        best = STRENGTHS[int(np.nan_to_num(losses, nan=np.inf).argmin())]
        return {"strength": best, "tried": list(STRENGTHS), "losses": losses.tolist()}

    def _drawn(self, task: Task) -> OldClasses | None:
        """Return the statistics that the old rows of batches are drawn from, if they are drawn."""
        return self._past.before(task.number) if self._shared.draws_old_rows else None

    def _train(
        self, lesson: Lesson, data: LabelledRows, anchors: list[Anchor | None]
    ) -> Iterator[Fact]:
        """Train all heads; evaluate them at each evaluation point, also before the first step."""
        task, stream, ends = lesson.task, self._shared.stream, self._experiment.scenario.ends
        chosen = lesson.rows.loss_sample(stream.seed) - (len(lesson.rows.labels) - len(data))
        sample = data.take(torch.from_numpy(chosen))
        steps = TaskSteps.of(self._bank, data, lesson, anchors, self._drawn(task))
        yield Done("prepare")
        for stop in stream.evaluation_points:
            for done in steps.until(stop):
                yield Stepped(done)
            if stop == stream.iterations:
                yield Trained(0, steps.losses)
            tested = self._experiment.seen_tests(task)
            listed = stream.lists_mistakes(stop)
            found = evaluate(self._bank, tested, ends, list_mistakes=listed)
            yield Tested(stop, found, mean_losses(self._bank, sample))

    def _diagnoses(
        self, lesson: Lesson, data: LabelledRows, diagnose: Diagnose
    ) -> list[dict[str, Any]]:
        """Measure each head in its present state, on the rows that the task was learnt from."""
        stop = lesson.task.stop
        if self._shared.draws_old_rows:
            statistics = self._past.statistics(lesson.task.number)
        else:
            groups = self._past.groups(lesson.rows)
            statistics = self._statistics.of(lesson.rows, data.arrays(), stop, "class", groups)
        heads = [self._bank.rows(index) for index in range(self._bank.num_heads)]
        return [diagnose(statistics, head.between(0, stop)) for head in heads]


class ClosedHeads(Method):
    """One closed form; its studies differ at most in the loss by which scores are measured."""

    def __init__(
        self, experiment: Experiment, diagnose: Diagnose | None = None, observer: Observer = ignore
    ) -> None:
        """Begin without classes; `observer` hears of the progress within a task."""
        self.device = experiment.device
        self._experiment, self._diagnose, self._observer = experiment, diagnose, observer
        with torch_stream(self.device):
            zeros = placed(np.zeros(experiment.head.dim), self.device)
            self._form = closed_form(experiment.study, zeros)

    def seconds(self, spent: Mapping[str, float]) -> Float[np.ndarray, " heads"]:
        """Return the whole time for each run, because a single run would have taken as long."""
        whole = spent.get("initialise", 0) + spent.get("evaluate", 0)
        return np.full(len(self._experiment.studies), whole)

    def head(self, index: int) -> Head:
        """Copy the linear layer in its present state."""
        rows, feature_map = self._form.rows, self._form.feature_map
        names = self._experiment.scenario.class_names[: rows.bias.shape[0]]
        return rows.as_head(names, self._experiment.head.fingerprint, feature_map=feature_map)

    def learn(self, lesson: Lesson) -> Iterator[Fact]:
        """Learn the classes of a task; before the first task, learn the base classes."""
        experiment, watch, task = self._experiment, Stopwatch(self.device), lesson.task
        arriving = [(lesson.rows, task.stop)]
        if task.number == 1 and experiment.scenario.num_base:
            arriving.insert(0, (experiment.plan.past(0), experiment.scenario.num_base))
        for rows, stop in arriving:
            data, number = experiment.training(rows.rows), rows.number
            yield Done("prepare")
            groups = experiment.scenario.train.groups_of(rows.rows) if number else None
            with torch_stream(self.device):
                told = rows.labels, stop, watch, self._observer, groups
                solution = self._form.learn(Arrival(number, data.arrays(), *told))
            yield Done("initialise")
        none, where = Rows(np.empty((0, 0)), np.empty(0)), library(placed(np.zeros(0), self.device))
        start = Initialisation(none, lam=solution.lam, curve=solution.curve, library=where)
        for _ in experiment.studies:
            yield Started(start, watch.seconds)
        yield self._tested(lesson, data)
        del data  # a diagnosis copies all rows seen
        if self._diagnose is not None:
            with torch_stream(self.device):
                diagnosis = {"diagnosis": self._diagnosis(task, self._diagnose)}
            yield Done("diagnose", of_heads=[diagnosis] * len(experiment.studies))

    def _tested(self, lesson: Lesson, data: LabelledRows) -> Tested:
        experiment = self._experiment
        trainings = [study.training for study in experiment.studies]
        chosen = lesson.rows.loss_sample(experiment.study.stream.seed)
        with torch_stream(self.device):
            bank = FormBank(self._form, lesson.task.stop, trainings, self.device)
            tested, ends = experiment.seen_tests(lesson.task), experiment.scenario.ends
            found = evaluate(bank, tested, ends, list_mistakes=True)
            return Tested(0, found, mean_losses(bank, data.take(torch.from_numpy(chosen))))

    def _diagnosis(self, task: Task, diagnose: Diagnose) -> dict[str, Any]:
        """Measure the linear layer on all rows seen."""
        train = self._experiment.scenario.train
        rows = train.rows_between(0, task.stop)
        arrays = self._experiment.training(rows).arrays()
        statistics = ClassStatistics.of(arrays, train.labels[rows], num_classes=task.stop)
        return diagnose(statistics, self._form.rows)


LINEAR = frozenset({"slda", "simplecil"})
"""Methods whose scores come from a linear head on the features themselves."""


def closed_form(study: Study, zeros: Float[Any, " dim"]) -> ClosedForm:
    """Return the method of a study, without any rows.

    Args:
        study: A study with one of `CLOSED_METHODS`.
        zeros: Zeros of the width of a feature, in float64; sets library and device.
    """
    closed, seed = study.closed, study.stream.seed
    match study.stream.method:
        case "slda":
            return Slda(closed.slda, zeros)
        case "simplecil":
            return SimpleCil(zeros)
    return Ranpac(closed.ranpac, zeros, seed=seed)


_GRAM_COPIES = 5
"""Measured peak of memory, as a multiple of one Gram matrix. It includes the matrix, the copy that
is solved, its factor, and the buffer in which BLAS transposes."""
_PATH_COPIES = 6
"""Further copies if a task has more rows than random features: another Gram matrix for lambda, its
eigenvectors, and the workspace of the decomposition."""


def check_memory(scenario: Scenario, study: Study) -> None:
    """Check that the statistics of a study fit into memory, if they are large.

    Raises:
        MachineError: If they do not.
    """
    ranpac, counts = study.closed.ranpac, scenario.train_counts
    if study.stream.method != "ranpac":
        return
    most = max(int(counts[task.rows].sum()) for task in scenario.learnt)
    chooses = ranpac.lam == "auto" and most > ranpac.width
    copies = _GRAM_COPIES + (_PATH_COPIES if chooses else 0)
    need = 8 * (copies * ranpac.width**2 + 2 * scenario.num_classes * ranpac.width)
    free = free_memory(choose_device(study.training.device))
    if need > free:
        raise MachineError(
            f"the statistics of {study.stream.method} take {size_text(need)} of memory, but"
            f" {size_text(free)} are free",
            remedy="Give a smaller --ranpac-width, or --method slda.",
        )


class FormBank(Bank):
    """A closed form as a bank of equal heads, one for each loss, to be evaluated as any bank."""

    def __init__(
        self, form: ClosedForm, num_classes: int, heads: Sequence[Training], device: torch.device
    ) -> None:
        super().__init__(Rows(np.zeros((num_classes, 0)), np.zeros(num_classes)), heads, device)
        self._form = form

    has_tf32 = False

    @property
    def row_values(self) -> int:
        """Numbers in memory for each row that is evaluated."""
        return super().row_values + self._form.block_values

    def logits(
        self, features: Float[Tensor, "rows dim"], out: BankLogits, heads: slice = slice(None)
    ) -> BankLogits:
        """Write the scores into `out`, and return it."""
        return out.copy_(as_tensor(self._form.scores(as_array(features)))[:, None])

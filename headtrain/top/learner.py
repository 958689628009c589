"""A network that learns one task after another at its top, and writes down what happens."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import asdict
from itertools import repeat
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Int

from clinit.extract.cache.head import Head
from clinit.headtrain.array import as_array, namespace, torch_stream
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
from clinit.headtrain.start.new_rows import random_task_rows
from clinit.headtrain.start.task_start import TaskStart, warm_up
from clinit.headtrain.stream.buffer import TaskRows
from clinit.headtrain.stream.scenario import Task
from clinit.headtrain.stream.seeds import Draw, generator
from clinit.headtrain.stream.task_plan import Schedule
from clinit.headtrain.study import Study
from clinit.headtrain.top.activations import Batch, TaskReader
from clinit.headtrain.top.checkpoint import (
    FINISHED,
    Checkpoint,
    misfit,
    read_checkpoint,
    write_checkpoint,
)
from clinit.headtrain.top.evaluate import features, measure, probe
from clinit.headtrain.top.inputs import TopInputs
from clinit.headtrain.top.method import TopMethod
from clinit.headtrain.top.network import PlasticModel, Shares, shares
from clinit.headtrain.top.training import (
    Watchers,
    restore_optimizer,
    stored_optimizer,
    top_optimizer,
    train_top,
)
from clinit.stopwatch import Stopwatch

PHASES = ("initialise", "method", "train", "evaluate", "probe")


class TopLearner:
    """One network, its method, and its place in the stream."""

    def __init__(
        self,
        inputs: TopInputs,
        study: Study,
        name: str,
        model: PlasticModel,
        method: TopMethod,
        *,
        observer: Observer,
        checkpoint: Path | None,
        checkpoint_every: int,
    ) -> None:
        """`checkpoint` is the file that the run goes on from, and keeps up to date."""
        warm_up(model.device)
        self.watch = Stopwatch(model.device)
        self.entries: list[TaskEntry] = []
        self.diverged: list[str] = []
        self.shares: Shares | None = None
        self.paid = {part.name for part in inputs.parts if part.computed_here}
        """Stored activations that this run, or a killed attempt at it, has computed."""
        self._inputs = inputs
        self._study = study
        self._stream = study.stream
        self._name = name
        self._model = model
        self._method = method
        self._observe = observer
        self._path = checkpoint
        self._every = checkpoint_every

    @property
    def seconds(self) -> float:
        """Time of the run without its probes, killed attempts up to their checkpoints included."""
        return sum(self.watch.seconds[phase] for phase in PHASES if phase != "probe")

    def learn(self) -> None:
        """Learn all tasks, or those that are left after a checkpoint."""
        scenario = self._inputs.scenario
        found = self._found()
        done = 0 if found is None else found.task
        if self._study.start.head_width == "full":
            self._grow(*scenario.tasks)
        for task in scenario.learnt:
            if self._study.start.head_width == "grow":
                self._grow(task)
            if task.number > done:
                self._learn(task, None)
            elif task.number == done and found is not None:
                self._restore(task, found)

    def head(self, fingerprint: str) -> Head:
        """Copy the classifier, with the names of its classes and `fingerprint`."""
        with torch_stream(self._model.device):
            names = self._inputs.scenario.class_names[: self._model.num_classes]
            return self._model.rows().as_head(names, fingerprint)

    def _grow(self, *tasks: Task) -> None:
        for task in tasks:
            self._model.grow(random_task_rows(self._stream.seed, task, self._model.dim))

    def _found(self) -> Checkpoint | None:
        if self._path is None:
            return None
        found = read_checkpoint(self._path, self._inputs.digest(self._study), self._model.device)
        if found is None:
            return None
        self._check_extent(found, self._path)
        self.entries = list(found.entries)
        self.diverged = list(found.facts["diverged"])
        self.paid |= set(found.facts["paid"])
        self.watch.seconds.update(found.facts["seconds"])
        self.shares = Shares(**found.facts["shares"])
        place = f"task {found.task}"
        if found.iteration != FINISHED:
            place = f"{found.iteration:,} updates of {place}"
        self._observe(Noted(f"{self._name} goes on from its checkpoint, after {place}"))
        return found

    def _check_extent(self, found: Checkpoint, path: Path) -> None:
        """Check that the tasks, updates and classes of a checkpoint are those of the run."""
        updates, classes = self._stream.iterations, self._inputs.scenario.num_classes
        tasks = self._inputs.scenario.learnt
        if found.task > len(tasks) or found.iteration > updates:
            raise misfit(path, "it goes further than the run")
        for entry, task in zip(found.entries, tasks, strict=False):
            width = task.stop if self._study.start.head_width == "grow" else classes
            parts = [(entry.new_share, (updates,)), (entry.losses, (updates, 1, 2))]
            for point in entry.points:
                parts += [(point.correct, (1, width)), (point.correct_in_task, (1, width))]
                parts += [(point.loss_new, (1,)), (point.elapsed_s, (1,))]
            if any(values is None or values.shape != shape for values, shape in parts):
                raise misfit(path, f"its entry of task {task.number} belongs to another run")

    def _take_over(self, found: Checkpoint) -> None:
        """Take over the parameters of the network and what the method remembers."""
        assert self._path is not None
        with _fitting(self._path):
            self._model.restore(found.model)
            self._method.restore(found.method)

    def _restore(self, task: Task, found: Checkpoint) -> None:
        """Take over a checkpoint, and finish its task if it is inside one."""
        iterations = self._stream.iterations
        if found.iteration != FINISHED:
            self._observe(Stepped((task.number - 1) * iterations))
            self._learn(task, found)
            return
        self._observe(Stepped(task.number * iterations))
        self._take_over(found)

    def _learn(self, task: Task, found: Checkpoint | None) -> None:
        """Learn one task, from its beginning or from a checkpoint inside it."""
        stream, task_plan = self._stream, self._inputs.task_plan
        self._observe(
            TaskStarted(task.number, len(self._inputs.scenario.learnt), stream.iterations)
        )
        rows = task_plan.rows(task)
        schedule = task_plan.schedule(rows)
        reader = self._reader(task, rows)
        self._model.open(self._low_rank_draw(task))
        if self.shares is None:
            self.shares = shares(self._model.network, self._model.cut.blocks)
            self._observe(Noted(f"{self._name}: {self.shares.line()}"))
        if found is None:
            seen = task_plan.start_rows(task, rows)
            entry = TaskEntry.begin(self._inputs.scenario, task, rows, seen, schedule)
            entry.losses = np.full((stream.iterations, 1, 2), np.nan, dtype=np.float32)
            self.entries.append(entry)
            self._initialise(task, seen, entry)
            with self.watch.phase("method"):
                self._method.begin(self._model, task, reader)
        else:
            self._take_over(found)
        self._train(task, rows, schedule, reader, found)
        self._model.close()
        with self.watch.phase("method"):
            self._method.end(self._model, task, reader)
        self._probe(task)
        self._save(task, FINISHED, None)

    def _initialise(self, task: Task, seen: TaskRows, entry: TaskEntry) -> None:
        """Write the new rows, from statistics of the features as the network gives them now."""
        shared = TaskStart(
            task,
            self._inputs.scenario.num_base,
            lambda: as_array(features(self._model, self._inputs.train, seen.rows)),
            seen.labels,
            None,
            self._model.device,
            lambda curve: self._observe(LambdaChosen(task.number, curve)),
            groups=lambda: self._inputs.scenario.train.groups_of(seen.rows),
        )
        with self.watch.phase("initialise"), torch_stream(self._model.device):
            study = self._study
            if study.start.init != "random" and not _is_finite(shared.features):
                self._diverge(f"its features are not finite at the start of task {task.number}")
                # Nothing can be learnt from such features.
                study = study.changed({"init": "random"})
            start, seconds = shared.start(study, self._model.rows())
            self._model.write(task.start, start.rows)
        entry.starts.append(start.facts())
        entry.start_seconds.append(seconds)
        self._observe(Initialised(task.number, self._name, start, seconds))

    def _train(
        self,
        task: Task,
        rows: TaskRows,
        schedule: Schedule,
        reader: TaskReader,
        found: Checkpoint | None,
    ) -> None:
        training = self._study.training
        if not self._stream.iterations:
            self._evaluate(task, rows, 0)
            return
        optimizer, rates = top_optimizer(
            self._model.network,
            lr=training.rate,
            weight_decay=training.weight_decay,
            layer_decay=self._inputs.top.layer_decay,
            iterations=self._stream.iterations,
        )
        first = 0 if found is None else found.iteration
        if found is not None:
            assert self._path is not None
            with _fitting(self._path):
                restore_optimizer(optimizer, rates, found.optimizer, found.facts["groups"], first)
            self._observe(Stepped(first))
        losses = self.entries[-1].losses
        assert losses is not None
        with closing(self._batches(rows, schedule, reader, first)) as batches:
            train_top(
                self._model,
                self._method,
                batches,
                optimizer,
                rates,
                losses,
                self._stream,
                first=first,
                checkpoint_every=self._every if self._path is not None else 0,
                watchers=Watchers(
                    evaluate=lambda done: self._evaluate(task, rows, done),
                    stepped=lambda done: self._observe(Stepped(1)),
                    save=lambda done: self._save(task, done, optimizer),
                ),
                watch=self.watch,
            )

    def _batches(
        self, rows: TaskRows, schedule: Schedule, reader: TaskReader, first: int
    ) -> Generator[tuple[Batch, Batch | None]]:
        """Yield the batches from number `first` on, with second draws where they are wanted."""
        with ExitStack() as stack:
            drawn = [rows.rows[batch] for batch in schedule.batches[first:]]
            num_new = schedule.num_new[first:].tolist()
            stream = stack.enter_context(closing(reader.stream(drawn, num_new)))
            if self._method.draws == 1 or not rows.num_old:
                yield from zip(stream, repeat(None))
                return
            other = self._inputs.task_plan.schedule(rows, Draw.SECOND_BATCH)
            again = [
                rows.rows[batch[new:]]
                for batch, new in zip(
                    other.batches[first:], other.num_new[first:].tolist(), strict=True
                )
            ]
            second = stack.enter_context(closing(reader.stream(again, [0] * len(again))))
            yield from zip(stream, second, strict=True)

    def _reader(self, task: Task, rows: TaskRows) -> TaskReader:
        old: Int[np.ndarray, " old"] = rows.rows[: rows.num_old]
        if not len(old) and task.number == 1:
            old = self._inputs.task_plan.base_sample(self._method.base_sample)
        return TaskReader(
            self._inputs.scenario.train,
            self._inputs.train,
            new=rows.rows[rows.num_old :],
            old=old,
            kept=self._inputs.task_plan.kept(task),
        )

    def _low_rank_draw(self, task: Task) -> torch.Generator:
        seed = generator(self._stream.seed, Draw.LOW_RANK, task.number).integers(2**63)
        return torch.Generator().manual_seed(int(seed))

    def _evaluate(self, task: Task, rows: TaskRows, iteration: int) -> None:
        with self.watch.phase("evaluate"):
            ended = iteration == self._stream.iterations
            found, loss = measure(
                self._model, self._inputs, self._study, task, rows, list_mistakes=ended
            )
        seconds = np.array([self.seconds])
        entry = self.entries[-1]
        entry.points.append(Point(iteration, found.correct, found.correct_in_task, loss, seconds))
        entry.mistakes = found.mistakes or ()
        if not np.isfinite(loss[0]):
            self._diverge(
                f"its loss is {loss[0]} after {iteration:,} updates of task {task.number}"
            )
        self._observe(Evaluated(task.number, iteration, {self._name: float(loss[0])}))

    def _diverge(self, why: str) -> None:
        """Note that the run has diverged, once per run."""
        if not self.diverged:
            self.diverged.append(f"{self._name} has diverged: {why}")
            self._observe(Noted(self.diverged[0]))

    def _probe(self, task: Task) -> None:
        """Measure forward transfer, on the classes of the next task."""
        tasks = self._inputs.scenario.learnt
        if not self._inputs.top.probe or task.number == len(tasks):
            return
        following = tasks[task.number]
        with self.watch.phase("probe"):
            found = probe(self._model, self._inputs, following)
        if found is not None:
            self.entries[-1].facts["forward_transfer"] = {
                "task": following.number,
                "top1": found.top1_best,
                "iteration": found.iteration,
            }

    def _save(self, task: Task, iteration: int, optimizer: torch.optim.Optimizer | None) -> None:
        if self._path is None:
            return
        groups, state = ([], {}) if optimizer is None else stored_optimizer(optimizer)
        checkpoint = Checkpoint(
            run=self._inputs.digest(self._study),
            task=task.number,
            iteration=iteration,
            model=self._model.state(),
            method=self._method.state(),
            optimizer=state,
            entries=tuple(self.entries),
            facts={
                "diverged": self.diverged,
                "paid": sorted(self.paid),
                "seconds": dict(self.watch.seconds),
                "groups": groups,
                "shares": asdict(self.shares) if self.shares is not None else None,
            },
        )
        write_checkpoint(checkpoint, self._path)


@contextmanager
def _fitting(path: Path) -> Iterator[None]:
    """Refuse a checkpoint whose tensors do not fit the run."""
    try:
        yield
    except torch.OutOfMemoryError:
        raise
    except (RuntimeError, AssertionError, ValueError, KeyError, IndexError, TypeError) as error:
        raise misfit(path, "its tensors are not those of this run") from error


def _is_finite(features: Any) -> bool:
    xp = namespace(features)
    return bool(xp.all(xp.isfinite(features)))

"""The top blocks of a network and its classifier, as a method of `protocol.learner`.

A run with a checkpoint resumes from it: it restores entries, notes and seconds, skips finished
tasks, and resumes the current task at its last stored update.
"""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from functools import cached_property
from itertools import pairwise, repeat
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float, Int

from clinit.extract.cache.head import Head
from clinit.headtrain.heads.array import as_array, namespace
from clinit.headtrain.heads.linear import Rows
from clinit.headtrain.heads.seeds import Draw, generator
from clinit.headtrain.heads.start.new_rows import random_task_rows
from clinit.headtrain.heads.start.scale import Initialisation
from clinit.headtrain.protocol.events import Noted, Stepped
from clinit.headtrain.protocol.learner import Learner, Method, TaskRun
from clinit.headtrain.protocol.stream.scenario import Task
from clinit.headtrain.protocol.study.study import Study
from clinit.headtrain.protocol.train.task_start import TaskStart
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
from clinit.headtrain.top.network import PlasticModel, cut_network
from clinit.headtrain.top.training import (
    TopMethod,
    restore_optimizer,
    stored_optimizer,
    top_optimizer,
    train_span,
)

PHASES = ("initialise", "method", "train", "evaluate", "probe")


class TopBlocks(Method):
    """A copy of the network of some inputs, whose top blocks and classifier are trained."""

    def __init__(
        self,
        inputs: TopInputs,
        study: Study,
        method: TopMethod,
        checkpoint: Path | None,
        checkpoint_every: int,
    ) -> None:
        """Copy the network.

        Args:
            inputs: Stream, activations and network.
            study: The study to train, resolved.
            method: The loss to minimise, and the memory of earlier tasks.
            checkpoint: The file that the run resumes from and updates; None: no checkpoints.
            checkpoint_every: Updates between two checkpoints; 0: one per task.
        """
        network = copy.deepcopy(inputs.network)
        halves = cut_network(network, inputs.top.top_blocks)
        self.model = PlasticModel(network, halves, Rows.of_head(inputs.initial_head), study)
        self.device = self.model.device
        self._inputs = inputs
        self._study = study
        self._method = method
        self._path = checkpoint
        self._every = checkpoint_every
        self._found: Checkpoint | None = None
        """A checkpoint inside the next task."""

    def seconds(self, spent: Mapping[str, float]) -> Float[np.ndarray, " 1"]:
        """Return the time without probes, including killed attempts up to their checkpoints."""
        return np.array([sum(spent.get(phase, 0.0) for phase in PHASES if phase != "probe")])

    @cached_property
    def changed(self) -> dict[str, np.ndarray]:
        """The parameters of the blocks that training has changed, by name; read after training."""
        return self.model.changed()

    def head(self, index: int, names: Sequence[str]) -> Head:
        """Copy the classifier.

        The fingerprint depends on the changed parameters, so that the head is refused for features
        of the original backbone.
        """
        fingerprint = self._inputs.initial_head.fingerprint
        if self.changed:
            digest = hashlib.sha256(self._inputs.data.base.fingerprint.backbone_identifier.encode())
            for name, values in sorted(self.changed.items()):
                digest.update(name.encode())
                digest.update(np.ascontiguousarray(values).data)
            fingerprint = digest.hexdigest()
        return self.model.rows().as_head(tuple(names[: self.model.num_classes]), fingerprint)

    def resume(self, learner: Learner) -> int:
        """Restore a checkpoint; return how many tasks it has finished."""
        scenario = self._inputs.scenario
        if self._study.start.head_width == "full":
            self._grow(*scenario.tasks)
        if self._path is None:
            return 0
        found = read_checkpoint(self._path, self._inputs.digest(self._study), self.device)
        if found is None:
            return 0
        learner.entries = list(found.entries)
        learner.diverged = dict(zip(learner.ids, found.facts["diverged"], strict=False))
        learner.watch.seconds.update(found.facts["seconds"])
        finished = found.task if found.iteration == FINISHED else found.task - 1
        inside = f" and {found.iteration:,} updates" if finished < found.task else ""
        learner.observe(
            Noted(f"{learner.ids[0]} resumes from its checkpoint, after {finished} tasks{inside}")
        )
        learner.observe(Stepped(finished * self._study.stream.iterations))
        if self._study.start.head_width == "grow":
            self._grow(*scenario.learnt[:finished])
        if inside:
            self._found = found
        else:
            self._take_over(found)
        return finished

    def begin(self, run: TaskRun) -> None:
        """Add rows for the task's classes, and make the blocks plastic."""
        if self._study.start.head_width == "grow":
            self._grow(run.task)
        seed = generator(self._study.stream.seed, Draw.LOW_RANK, run.task.number).integers(2**63)
        self.model.open(torch.Generator().manual_seed(int(seed)))

    def start(self, run: TaskRun) -> Iterator[tuple[Initialisation, Mapping[str, float]]]:
        """Write the new rows, from statistics of the present features of the network."""
        task, seen, study = run.task, run.seen, self._study
        shared = TaskStart(
            task,
            self._inputs.scenario.num_base,
            seen,
            lambda: as_array(features(self.model, self._inputs.train, seen.rows)),
            lambda: self._inputs.scenario.train.groups_of(seen.rows),
            None,
            self.device,
        )
        if (
            study.start.init != "random"
            and not namespace(shared.features).isfinite(shared.features).all()
        ):
            why = f"its features are not finite at the start of task {task.number}"
            run.learner.diverge(run.learner.ids[0], why)
            # Nothing can be learnt from such features.
            study = study.changed({"init": "random"})
        start, seconds = shared.start(study, self.model.rows())
        self.model.write(task.start, start.rows)
        yield start, seconds

    def train(self, run: TaskRun) -> None:
        """Train on the task, from its beginning or from a checkpoint inside it."""
        reader = self._reader(run)
        found, self._found = self._found, None
        steps = self._study.stream.iterations
        if found is not None:
            self._take_over(found)
        else:
            run.entry.losses = np.full((steps, 1, 2), np.nan, dtype=np.float32)
            with run.watch.phase("method"):
                self._method.begin(self.model, run.task, reader)
        if steps:
            self._update(run, reader, found)
        else:
            self._evaluate(run, 0)
        self.model.close()
        with run.watch.phase("method"):
            self._method.end(self.model, run.task, reader)

    def end(self, run: TaskRun) -> None:
        """Measure forward transfer, and store the checkpoint between two tasks."""
        tasks = self._inputs.scenario.learnt
        if self._inputs.top.probe and run.task.number < len(tasks):
            following = tasks[run.task.number]
            with run.watch.phase("probe"):
                found = probe(self.model, self._inputs, following)
            if found is not None:
                run.entry.facts["forward_transfer"] = {"task": following.number, **found}
        self._save(run, FINISHED, None)

    def _grow(self, *tasks: Task) -> None:
        for task in tasks:
            self.model.grow(
                random_task_rows(
                    self._study.stream.seed, task.number, len(task.classes), self.model.dim
                )
            )

    def _update(self, run: TaskRun, reader: TaskReader, found: Checkpoint | None) -> None:
        training, stream = self._study.training, self._study.stream
        optimizer, rates = top_optimizer(
            self.model.network,
            lr=training.rate,
            weight_decay=training.weight_decay,
            layer_decay=self._inputs.top.layer_decay,
            iterations=stream.iterations,
        )
        first = 0
        if found is not None:
            first = found.iteration
            restore_optimizer(optimizer, rates, found.optimizer, found.facts["groups"], first)
            run.learner.observe(Stepped(first))
        points, saves = set(stream.evaluation_points), set[int]()
        if self._every and self._path is not None:
            saves = set(range(self._every, stream.iterations, self._every))
        stops = sorted(stop for stop in points | saves if stop > first)
        losses = run.entry.losses
        assert losses is not None
        if not first:
            self._evaluate(run, 0)
        with closing(self._batches(run, reader, first)) as batches:
            for start, stop in pairwise((first, *stops)):
                with run.watch.phase("train"):
                    span, tell = range(start, stop), run.learner.observe
                    means = train_span(
                        self.model, self._method, batches, optimizer, rates, span, tell
                    )
                    losses[start:stop, 0] = means.cpu().numpy()
                if stop in points:
                    self._evaluate(run, stop)
                if stop in saves:
                    self._save(run, stop, optimizer)

    def _batches(
        self, run: TaskRun, reader: TaskReader, first: int
    ) -> Generator[tuple[Batch, Batch | None]]:
        """Yield the batches from number `first` on, with second draws if the method needs them."""
        rows, schedule = run.rows, run.schedule
        with ExitStack() as stack:
            drawn = [rows.rows[batch] for batch in schedule.batches[first:]]
            num_new = schedule.num_new[first:].tolist()
            stream = stack.enter_context(closing(reader.stream(drawn, num_new)))
            if self._method.draws == 1 or not rows.num_old:
                yield from zip(stream, repeat(None))
                return
            other = self._inputs.task_plan.schedule(rows, Draw.SECOND_BATCH)
            pairs = zip(other.batches[first:], other.num_new[first:].tolist(), strict=True)
            again = [rows.rows[batch[new:]] for batch, new in pairs]
            second = stack.enter_context(closing(reader.stream(again, [0] * len(again))))
            yield from zip(stream, second, strict=True)

    def _reader(self, run: TaskRun) -> TaskReader:
        rows, plan = run.rows, self._inputs.task_plan
        old: Int[np.ndarray, " old"] = rows.rows[: rows.num_old]
        if not len(old) and run.task.number == 1:
            old = plan.base_sample(self._method.base_sample)
        return TaskReader(
            self._inputs.scenario.train,
            self._inputs.train,
            new=rows.rows[rows.num_old :],
            old=old,
            kept=plan.kept(run.task),
        )

    def _evaluate(self, run: TaskRun, iteration: int) -> None:
        is_last = iteration == self._study.stream.iterations
        with run.watch.phase("evaluate"):
            found, losses = measure(
                self.model, self._inputs, self._study, run.task, run.rows, list_mistakes=is_last
            )
        run.evaluated(iteration, found, losses)

    def _save(self, run: TaskRun, iteration: int, optimizer: torch.optim.Optimizer | None) -> None:
        if self._path is None:
            return
        groups, state = ([], {}) if optimizer is None else stored_optimizer(optimizer)
        checkpoint = Checkpoint(
            run=self._inputs.digest(self._study),
            task=run.task.number,
            iteration=iteration,
            model=self.model.state(),
            method=self._method.state(),
            optimizer=state,
            entries=tuple(run.learner.entries),
            facts={
                "diverged": list(run.learner.diverged.values()),
                "seconds": dict(run.watch.seconds),
                "groups": groups,
            },
        )
        write_checkpoint(checkpoint, self._path)

    def _take_over(self, found: Checkpoint) -> None:
        assert self._path is not None
        try:
            self.model.restore(found.model)
            self._method.restore(found.method)
        except (RuntimeError, AssertionError, KeyError) as error:  # of another version of timm
            raise misfit(self._path, "its tensors belong to another run") from error

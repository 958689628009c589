"""Runs with plastic top blocks: each is trained, resumed and recorded once.

rehearsal   new rows and a buffer of old rows      mean loss
naive       new rows only                          mean loss
joint       all rows of all classes seen so far    mean loss
ewc         new rows only                          mean loss + springs to former parameters
derpp       new rows and a buffer of old rows      weighted losses + distance to former logits

The top blocks of a network and its classifier are a method of a learner.
A run with a checkpoint resumes from it: its learner restores entries, notes and seconds and skips
finished tasks, and the method resumes the current task at its last stored update.

Features of the network in its present state, and the measurements made on them.

Forward transfer is measured by a linear probe, as in the paper. After a task, a new head is trained
on frozen features of only the classes of the next task. It is trained with cross entropy, AdamW, a
constant learning rate, no weight decay and no augmentation. The reported number is the best top-1
accuracy over all evaluation points, including the point before the first step. It is an upper
estimate, because it is chosen on the validation rows on which it is measured.
"""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import replace
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from clinit.extract.cache.head import Head
from clinit.headtrain.heads.array import as_array, namespace, torch_stream
from clinit.headtrain.heads.linear import Rows
from clinit.headtrain.heads.seeds import Draw, generator
from clinit.headtrain.heads.start.new_rows import random_rows, random_task_rows
from clinit.headtrain.protocol import events
from clinit.headtrain.protocol.events import FINISHED, Fact, Paused, Tested
from clinit.headtrain.protocol.experiment import records_of
from clinit.headtrain.protocol.learner import Learner, Log, Method
from clinit.headtrain.protocol.record.format import RunRecord, write_record
from clinit.headtrain.protocol.runs import checkpoint_of
from clinit.headtrain.protocol.stream.scenario import Task
from clinit.headtrain.protocol.stream.task_plan import Lesson, draw_schedule
from clinit.headtrain.protocol.study.parts import Top, Training
from clinit.headtrain.protocol.study.study import Study, by_stream, names_of
from clinit.headtrain.protocol.train.evaluate import evaluate, mean_losses
from clinit.headtrain.protocol.train.heads import Bank, LabelledRows
from clinit.headtrain.protocol.train.step import Updates
from clinit.headtrain.protocol.train.task_start import TaskStart
from clinit.headtrain.top import training
from clinit.headtrain.top.activations import Index, PoolActivations, TaskReader, cut
from clinit.headtrain.top.checkpoint import Checkpoint, damaged, read_checkpoint
from clinit.headtrain.top.inputs import ImageData, TopInputs, prepare_runs
from clinit.headtrain.top.methods import Derpp, Ewc
from clinit.headtrain.top.network import PlasticModel, cut_network
from clinit.machine import now
from clinit.observer import Noted, Observer, Progressed, ignore

FORWARD_ROWS = {"cpu": 32, "cuda": 256}
"""Rows per forward pass if no gradient is needed, by device.

For larger activations, a CPU allocates new pages of memory at each layer: with a ViT-tiny, batches
of 256 rows are a sixth slower than batches of 32.
"""


@torch.no_grad()
def features(
    model: PlasticModel, activations: PoolActivations, rows: Index
) -> Float[Tensor, "rows dim"]:
    """Return the features of pool rows, in float32 on the model's device."""
    found = torch.empty((len(rows), model.dim), device=model.device)
    parts, done = cut(rows, FORWARD_ROWS[model.device.type]), 0
    with closing(activations.stream(parts)) as streamed:
        for values in streamed:
            found[done : done + len(values)] = model.features(values)
            done += len(values)
    return found


PROBE = Training(loss="ce", lr=1e-3, weight_decay=0.0)
PROBE_BATCH, PROBE_ITERATIONS, PROBE_EVERY = 128, 600, 50
"""The paper's values: rows per batch, updates, and updates between two evaluations."""


@torch.no_grad()
def linear_probe(
    train: LabelledRows, val: LabelledRows, num_classes: int, random: np.random.Generator
) -> list[tuple[int, float]]:
    """Train a random linear head on `train` and measure it on `val`, on the device of `train`.

    Args:
        train: Features and labels 0 to `num_classes` - 1.
        val: Features and labels of the rows on which the head is measured.
        num_classes: Number of rows of the head.
        random: Draws the head, as `torch.nn.Linear` does, and the batches; a row is repeated only
            after all other rows were used.

    Returns:
        Updates done and top-1 accuracy in [0, 1], at each evaluation point.
    """
    device, dim = train.features.device, train.features.shape[1]
    bank = Bank(random_rows(random, num_classes, dim), [PROBE], device)
    shares = [(range(len(train)), PROBE_BATCH)]
    schedule = draw_schedule(random, shares, first_new=0, iterations=PROBE_ITERATIONS)
    updates = Updates(bank, schedule.batches.shape[1])
    curve = [(0, int(evaluate(bank, val).correct.sum()) / len(val))]
    for done, chosen in enumerate(torch.from_numpy(schedule.batches).to(device), start=1):
        updates.step(train.features[chosen], train.labels[chosen])
        if done % PROBE_EVERY == 0 or done == PROBE_ITERATIONS:
            curve.append((done, int(evaluate(bank, val).correct.sum()) / len(val)))
    return curve


PHASES = ("initialise", "method", "train", "evaluate", "probe")


class TopBlocks(Method):
    """A copy of the network of some inputs, whose top blocks and classifier are trained."""

    def __init__(
        self, inputs: TopInputs, study: Study, found: Checkpoint | None, every: int
    ) -> None:
        """Copy the network.

        Args:
            inputs: Stream, activations and network.
            study: The study to train, resolved.
            found: The checkpoint that the run resumes from, if any.
            every: Updates between two pauses within a task; 0: none.
        """
        network = copy.deepcopy(inputs.network)
        self._scenario = scenario = inputs.experiment.scenario
        halves = cut_network(network, inputs.top.top_blocks)
        self.model = PlasticModel(network, halves, Rows.of_head(inputs.experiment.head), study)
        self.device = self.model.device
        self._inputs, self._study, self._method = inputs, study, top_method(study)
        self._every, self._grows = every, study.start.head_width == "grow"
        self._found = found
        """A checkpoint inside the next task."""
        finished = 0 if found is None else found.log.finished
        self._grow(*(scenario.learnt[:finished] if self._grows else scenario.tasks))
        if found is not None and found.iteration == FINISHED:
            self._take_over(found)
            self._found = None

    def seconds(self, spent: Mapping[str, float]) -> Float[np.ndarray, " 1"]:
        """Return the time without probes, including killed attempts up to their checkpoints."""
        return np.array([sum(spent.get(phase, 0.0) for phase in PHASES if phase != "probe")])

    @cached_property
    def changed(self) -> dict[str, np.ndarray]:
        """The parameters of the blocks that training has changed, by name; read after training."""
        return self.model.changed()

    def head(self, index: int) -> Head:
        """Copy the classifier.

        The fingerprint depends on the changed parameters, so that the head is refused for features
        of the original backbone.
        """
        fingerprint = self._inputs.experiment.head.fingerprint
        if self.changed:
            digest = hashlib.sha256(self._inputs.data.base.fingerprint.backbone_identifier.encode())
            for name, values in sorted(self.changed.items()):
                digest.update(name.encode())
                digest.update(np.ascontiguousarray(values).data)
            fingerprint = digest.hexdigest()
        names = self._scenario.class_names[: self.model.num_classes]
        return self.model.rows().as_head(names, fingerprint)

    def learn(self, lesson: Lesson) -> Iterator[Fact]:
        """Train on a task, from its beginning or from a checkpoint inside it."""
        task, tasks = lesson.task, self._scenario.learnt
        if self._grows:
            self._grow(task)
        seed = generator(self._study.stream.seed, Draw.LOW_RANK, task.number).integers(2**63)
        self.model.open(torch.Generator().manual_seed(int(seed)))
        reader, found, self._found = self._reader(lesson), self._found, None
        if found is not None:
            self._take_over(found)
        else:
            yield from self._start(lesson)
            self._method.begin(self.model, task, reader)
            yield events.Done("method")
        yield from self._update(lesson, reader, found)
        self.model.close()
        self._method.end(self.model, task, reader)
        yield events.Done("method")
        if self._inputs.top.probe and task.number < len(tasks):
            yield events.Done("probe", self._probed(tasks[task.number]))
        yield self._paused(FINISHED, None)

    def _start(self, lesson: Lesson) -> Iterator[Fact]:
        """Write the new rows, from statistics of the present features of the network."""
        task, seen, study = lesson.task, lesson.seen, self._study
        shared = TaskStart(
            task,
            self._scenario.num_base,
            seen,
            lambda: as_array(features(self.model, self._inputs.train, seen.rows)),
            lambda: self._scenario.train.groups_of(seen.rows),
            None,
            self.device,
        )
        with torch_stream(self.device):
            is_finite = study.start.init == "random" or bool(
                namespace(shared.features).isfinite(shared.features).all()
            )
            if not is_finite:  # nothing can be learnt from such features
                study = study.changed({"init": "random"})
            start, seconds = shared.start(study, self.model.rows())
            self.model.write(task.start, start.rows)
        if not is_finite:
            why = f"its features are not finite at the start of task {task.number}"
            yield events.Diverged(0, why)
        yield events.Started(start, seconds)

    def _grow(self, *tasks: Task) -> None:
        for task in tasks:
            seed, classes = self._study.stream.seed, len(task.classes)
            self.model.grow(random_task_rows(seed, task.number, classes, self.model.dim))

    def _update(self, lesson: Lesson, rows: TaskReader, found: Checkpoint | None) -> Iterator[Fact]:
        """Train, evaluate and pause, from the update on that a checkpoint has reached."""
        stream = self._study.stream
        first = 0 if found is None else found.iteration
        if not first:
            yield self._tested(lesson, 0)
        if not stream.iterations:
            return
        optimizer, rates = training.top_optimizer(
            self.model.network, self._study.training, self._inputs.top, stream.iterations
        )
        if found is not None:
            training.restore_optimizer(optimizer, (found.groups, found.optimizer))
            rates.last_epoch = first
            yield events.Stepped(first)
        points = set(stream.evaluation_points)
        saves = set(range(self._every, stream.iterations, self._every) if self._every else ())
        stops = sorted(stop for stop in points | saves if stop > first)
        drawn = [lesson.rows.rows[batch] for batch in lesson.schedule.batches[first:]]
        num_new = lesson.schedule.num_new[first:].tolist()
        with closing(rows.stream(drawn, num_new)) as batches:
            for start, stop in pairwise((first, *stops)):
                losses = []
                for each in training.train_steps(
                    self.model, self._method, batches, (optimizer, rates), range(start, stop)
                ):
                    losses.append(each)
                    yield events.Stepped(1, waits=False)
                yield events.Trained(start, torch.stack(losses).cpu().numpy()[:, None])
                if stop in points:
                    yield self._tested(lesson, stop)
                if stop in saves:
                    yield self._paused(stop, optimizer)

    def _reader(self, lesson: Lesson) -> TaskReader:
        rows, plan = lesson.rows, self._inputs.experiment.plan
        old: Index = rows.rows[: rows.num_old]
        if not len(old) and lesson.task.number == 1:
            old = plan.base_sample(self._method.base_sample)
        train = self._scenario.train
        return TaskReader(train, self._inputs.train, new=rows.rows[rows.num_old :], old=old)

    def _tested(self, lesson: Lesson, iteration: int) -> Tested:
        """Measure test rows of classes seen, and the new-task loss.

        Both are measured by the code for banks of heads, here with one head, in float32.
        """
        whole = replace(self._study.training, precision="float32")
        bank = Bank(self.model.tensors(), [whole], self.device)
        test = self._labelled("val", self._scenario.val.rows_between(0, lesson.task.stop))
        listed = self._study.stream.lists_mistakes(iteration)
        found = evaluate(bank, test, self._scenario.ends, list_mistakes=listed)
        rows = lesson.rows
        sample = self._labelled("train", rows.rows[rows.loss_sample(self._study.stream.seed)])
        return Tested(iteration, found, mean_losses(bank, sample))

    def _probed(self, task: Task) -> dict[str, Any]:
        """Probe the features for the classes of the next task; empty if they have no test rows."""
        train, val = (
            self._labelled(split, pool.rows_between(task.start, task.stop), first=task.start)
            for split, pool in (("train", self._scenario.train), ("val", self._scenario.val))
        )
        if not len(val):
            return {}
        random = generator(self._study.stream.seed, Draw.PROBE, task.number - 1)
        curve = linear_probe(train, val, len(task.classes), random)
        iteration, best = max(curve, key=lambda point: point[1])
        return {"forward_transfer": {"task": task.number, "top1": best, "iteration": iteration}}

    def _labelled(self, split: str, rows: Index, *, first: int = 0) -> LabelledRows:
        labels = getattr(self._scenario, split).labels[rows] - first
        found = features(self.model, getattr(self._inputs, split), rows)
        return LabelledRows(found, torch.from_numpy(labels).to(self.device))

    def _paused(self, iteration: int, optimizer: torch.optim.Optimizer | None) -> Paused:
        groups, state = ([], {}) if optimizer is None else training.stored_optimizer(optimizer)
        parts = {"model": self.model.state(), "method": self._method.memory}
        return Paused(iteration, {**parts, "optimizer": state, "groups": groups})

    def _take_over(self, found: Checkpoint) -> None:
        try:
            self.model.restore(found.model)
            self._method.memory = found.method
        except (RuntimeError, AssertionError, KeyError) as error:  # of another version of timm
            raise damaged(found.path, "its tensors belong to another run") from error


def run_top(
    inputs: TopInputs, study: Study, checkpoint: Path | None, every: int, observer: Observer
) -> RunRecord:
    """Train a copy of the network on its stream; return the record.

    The same call on the same device gives the same numbers, even if it was killed in between and
    resumes from its checkpoint.

    Args:
        inputs: Stream, activations and network.
        study: The study to train; it differs from the study of `inputs` at most in the settings
            `study.PER_HEAD`.
        checkpoint: A file to resume from and to update; None: no checkpoints.
        every: Updates between two checkpoints; 0: one per task.
        observer: Called with each event as it happens.

    Raises:
        CheckpointError: If the checkpoint is damaged or belongs to another run.
        ClinitError: If an image has become unreadable or the storage fails.
    """
    study, data = study.resolved(), inputs.data
    digest, log = inputs.digest(study), Log()
    found = read_checkpoint(checkpoint, digest, inputs.device) if checkpoint else None
    started = now()
    blocks = TopBlocks(inputs, study, found, every if checkpoint else 0)

    def store(log: Log, paused: Paused) -> None:
        if checkpoint is not None:
            Checkpoint(checkpoint, digest, paused.iteration, log, **paused.state).write()

    experiment = replace(inputs.experiment, studies=(study,))
    if study.stream.method == "ewc":
        observer(Progressed("measuring the Fisher information", 0, 1))
    if found is not None:
        log = found.log
        inside = f" and {found.iteration:,} updates" if found.iteration != events.FINISHED else ""
        after = f"after {log.finished} tasks{inside}"
        observer(Noted(f"{names_of([study])[0]} resumes from its checkpoint, {after}"))
        observer(events.Stepped(log.finished * study.stream.iterations))
    learner = Learner(experiment, blocks, observer, log, store)
    learner.learn()
    facts = {
        "started": started,
        "timings_s": {phase: learner.watch.seconds[phase] for phase in PHASES},
        "optimizer": {
            "name": "AdamW",
            "layer_decay": inputs.top.layer_decay,
            "schedule": "one cycle a task",
            "state": "fresh each task",
        },
        "top": {"blocks": blocks.model.cut.blocks},
        "activations": list(inputs.parts),
    }
    (record,) = records_of(learner, data, data.notes(experiment), facts)
    return record


def train_top(
    data: ImageData,
    left: Mapping[Study, Path],
    *,
    observer: Observer = ignore,
    resume_from: Callable[[Study], Path] | None = None,
    checkpoint_every: int = 100,
    overwrite: bool | None = None,
) -> None:
    """Train runs with top blocks one after another, resume killed runs, and record each run.

    The checkpoint of a run is removed once its record is written.

    Args:
        data: The data of the runs, with images.
        left: The runs, resolved, each with the folder of its record.
        observer: Called with each event as it happens.
        resume_from: Returns the file that a run resumes from; default: `FOLDER.checkpoint`.
        checkpoint_every: Updates between two checkpoints; 0: one per task.
        overwrite: Replace existing records; None if the caller has no such option.

    Raises:
        CheckpointError: If a checkpoint is damaged or belongs to another run.
        ClinitError: If an image has become unreadable, or a record cannot be written.
    """
    for runs in by_stream(left, data.heads):
        inputs = prepare_runs(data, runs, observer=observer)
        for study in runs:
            place = left[study]
            checkpoint = resume_from(study) if resume_from else checkpoint_of(place)
            observer(events.RunStarted(place))
            record = run_top(inputs, study, checkpoint, checkpoint_every, observer)
            named = replace(record, info={**record.info, "id": place.name})
            write_record(named, place, overwrite=overwrite)
            checkpoint.unlink(missing_ok=True)


def top_method(study: Study) -> training.TopMethod:
    """Return a new method for a resolved study; it reads only its own settings."""
    name, loss, top = study.stream.method, study.training.loss, study.top or Top()
    if name == "ewc":
        return Ewc(top.ewc, loss_name=loss, seed=study.stream.seed)
    return Derpp(top.derpp, loss) if name == "derpp" else training.TopMethod(loss)

"""A class-incremental experiment: learn a stream, and return one record per run.

With a frozen backbone: for each task, choose the buffer, compute the statistics once, initialise
the new rows of each head, train the bank on shared batches, evaluate before the first step and
during training. `clinit.headtrain.top.experiment` does the same with trained blocks.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar, cast

import numpy as np
import polars as pl
import torch

from clinit.errors import ExperimentError
from clinit.extract.cache.head import Head
from clinit.headtrain.heads.array import torch_stream
from clinit.headtrain.heads.groups import held_out_rows
from clinit.headtrain.heads.repeats import groups_of
from clinit.headtrain.heads.seeds import Draw, generator
from clinit.headtrain.heads.start.new_rows import Drawn
from clinit.headtrain.heads.start.scale import Initialisation
from clinit.headtrain.protocol.learner import Diagnose, Experiment, Learner, Method
from clinit.headtrain.protocol.methods import LINEAR, ClosedHeads, GradientHeads, check_memory
from clinit.headtrain.protocol.record.format import RunRecord
from clinit.headtrain.protocol.record.info import RunInfo, held_out_manifest, provenance
from clinit.headtrain.protocol.record.task_log import class_table
from clinit.headtrain.protocol.stream.buffer import LOSS_SAMPLE_ROWS
from clinit.headtrain.protocol.stream.scenario import data_notes
from clinit.headtrain.protocol.stream.source import Source, head_digest, no_base, starting_head
from clinit.headtrain.protocol.study.rules import PER_HEAD
from clinit.headtrain.protocol.study.study import Study, names_of
from clinit.headtrain.protocol.train.step import BETAS, EPS
from clinit.headtrain.protocol.train.task_start import Starts
from clinit.machine import device_name, now
from clinit.observer import Noted, Observer, ignore

MOST_IN_BANK = 100
"""Records list the heads of banks of at most this size, so that records stay small."""
PHASES = ("prepare", "initialise", "train", "evaluate", "diagnose")


Data = TypeVar("Data", bound="RunData")


@dataclass(frozen=True, eq=False)
class RunData:
    """The data that all runs of a call read."""

    base: Source
    """The base classes; `no_base(new)`, without any class, if the streams start from nothing."""
    new: Source
    head: Head
    """The pretrained head that runs start from."""
    heads: Mapping[str, Head] = field(default_factory=dict)
    """Heads by loss, for losses whose runs start from another head than `head`: aligned heads."""
    facts: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Facts about the heads for records, by loss; "" for `head`."""
    command: Sequence[str] = ()
    """The command line of the user, for the records."""
    starts: dict[Any, Starts] = field(default_factory=dict)
    """`Experiment.starts`, which banks share."""

    @classmethod
    def of(
        cls: type[Data],
        base: Source | None,
        new: Source,
        given: Mapping[str, Head | Path | None] | None = None,
        *,
        observer: Observer = ignore,
        **rest: Any,
    ) -> Data:
        """Return the data with pretrained heads.

        Args:
            base: The base classes; None for streams that start from nothing.
            new: The new classes.
            given: Heads, or their files, by loss; "" for all other losses.
            observer: Called with a note on how the file of a head was read, if this was uncertain.
            rest: Further fields.

        Raises:
            ExperimentError: If neither `given[""]` nor the base cache provides a head, or if a
                head is given without base classes, or if base and new classes are the same.
            HeadError: If a file is missing or damaged.
        """
        base = no_base(new) if base is None else base
        if base.fingerprint.features and base.fingerprint == new.fingerprint:
            raise ExperimentError(
                "the base and the new classes are the same features",
                remedy="Give features of other classes as new ones.",
            )
        by_loss = {"": None, **(given or {})}
        found = {loss: starting_head(base, head, observer) for loss, head in by_loss.items()}
        facts = {loss: each for loss, (_, each) in found.items()}
        head, _ = found.pop("")
        heads = {loss: each for loss, (each, _) in found.items()}
        return cls(base, new, head, heads, facts, **rest)

    def held_out(self, share: float, *, seed: int = 0) -> RunData:
        """Return the data with a share of the training rows in place of the test rows.

        Args:
            share: Share of the rows of each class, in (0, 1); repeated images stay together.
            seed: Seed of the draw.
        """
        sides = []
        for index, side in enumerate((self.base, self.new)):
            if not side.class_names:
                sides.append(side)
                continue
            random, held = generator(seed, Draw.HELD_OUT, index), np.zeros(0, dtype=bool)
            if len(side.train.labels):  # statistics have no rows to hold out
                held = held_out_rows(side.train.labels, groups_of(side.train), share, random)
            train, val = side.train.part(~held), side.train.part(held)
            manifest = held_out_manifest(share, seed)
            sides.append(replace(side, train=train, val=val, val_manifest=manifest))
        return replace(self, base=sides[0], new=sides[1], starts={})

    def head_for(self, loss: str) -> Head:
        """Return the pretrained head that runs of `loss` start from."""
        return self.heads.get(loss, self.head)

    def facts_for(self, loss: str) -> dict[str, Any]:
        """Return the facts for a record about the head that runs of `loss` start from."""
        return dict(self.facts.get(loss if loss in self.heads else "", {}))

    @property
    def num_classes(self) -> int:
        """Largest number of rows of a head at the end of a stream."""
        return self.head.num_classes + len(self.new.class_names)

    def experiment(self, studies: Sequence[Study]) -> Experiment:
        """Return the experiment of these studies.

        Raises:
            ValueError: If there is no study, if two are equal, or if two differ in their stream.
            ClinitError: As in `run_experiment`.
        """
        resolved = [study.resolved() for study in studies]
        names_of(resolved)
        if len({study.shared for study in resolved}) > 1:
            raise ValueError(f"heads of one bank differ at most in {', '.join(PER_HEAD)}")
        if not self.base.class_names and resolved[0].start.head_width == "full":
            raise ExperimentError(
                "--head-width full needs a pretrained head, but no base classes are given",
                remedy="Leave it out, or give the cache of base classes (--base CACHE).",
            )
        head = self.head_for(resolved[0].training.loss)
        return replace(Experiment.of(head, self.base, self.new, resolved), starts=self.starts)

    def notes(self, experiment: Experiment) -> list[str]:
        """Return notes for the user on gaps of the data."""
        facts = self.facts_for(experiment.study.training.loss)
        return data_notes(experiment.scenario, self.base, self.new, experiment.studies, facts)


def run_experiment(
    data: RunData,
    studies: Sequence[Study],
    *,
    observer: Observer = ignore,
    diagnose: Diagnose | None = None,
) -> list[RunRecord]:
    """Train a head for each study on the new classes; return one record each, in their order.

    All heads share class order, buffer, random rows and batches, all from the seed of the stream.
    The same call on the same device gives the same numbers, bit for bit.

    Args:
        data: The classes of the pretrained head, the classes that arrive, and the head.
        studies: Studies without top blocks; they differ at most in the settings `study.PER_HEAD`.
        observer: Called with each event as it happens.
        diagnose: Measures each head at the end of each task; its values go into the record.

    Raises:
        ValueError: If there is no study, if two are equal, or if two differ in their stream.
        CacheError: If the two sides contain features of different backbones.
        HeadError: If the head does not fit these features.
        ExperimentError: If the head's classes are unknown or there are too many tasks.
        DeviceError: If the device is absent.
        MachineError: If the statistics of a closed form do not fit into memory.
        StatisticsError: If the system of a closed form is singular.
    """
    started = now()
    experiment = data.experiment(studies)
    study = experiment.study
    check_memory(experiment.scenario, study)
    notes = data.notes(experiment)
    for note in notes:
        observer(Noted(note))
    method_name = study.stream.method
    if diagnose is not None and study.is_closed and method_name not in LINEAR:
        raise ExperimentError(
            f"--diagnose measures linear heads on the features, and {method_name} has none",
            remedy="Leave --diagnose out.",
        )
    method: Method = (
        ClosedHeads(experiment, diagnose, observer)
        if study.is_closed
        else GradientHeads(experiment, diagnose)
    )
    learner = Learner(experiment, method, observer)
    with torch.no_grad():
        learner.learn()
    load_s = data.base.load_s + data.new.load_s  # seconds of the whole bank, like all of these
    phases = {name: learner.watch.seconds[name] for name in PHASES}
    facts = {
        "started": started,
        "timings_s": {"load": load_s, **phases, "total": load_s + learner.watch.total},
        "optimizer": {"name": "AdamW", "betas": BETAS, "eps": EPS, "state": "fresh each task"},
    }
    return [*records_of(learner, data, notes, facts)]


def started_heads(
    head: Head,
    old: Source,
    new: Source,
    studies: Sequence[Study],
    *,
    came_with: int,
    drawn: Drawn | None = None,
) -> list[tuple[Head, Initialisation]]:
    """Return heads with initialised, untrained rows for the classes of `new`.

    Args:
        head: The head of the old classes.
        old: Real or drawn rows of old classes; may be empty.
        new: Features of the classes that arrive.
        studies: Settings of the starts, for one stream without updates.
        came_with: Number of base rows, at least 1. These are the first rows of the head, which no
            earlier call added; or all rows if an earlier call added every row.
        drawn: How rows in `old` came about that were drawn, if any.

    Returns:
        Each head with its initialisation.

    Raises:
        ClinitError: As in `run_experiment`.
    """
    experiment = Experiment.of(head, old, new, studies)
    method = GradientHeads(experiment, came_with=came_with, drawn=drawn)
    (task,) = experiment.scenario.tasks
    with torch.no_grad():
        starts = [*method.started(experiment.plan.lesson(task))]
    with torch_stream(method.device):
        return [(method.head(index), start) for index, start in enumerate(starts)]


def records_of(
    learner: Learner, data: RunData, notes: Sequence[str], facts: Mapping[str, Any]
) -> Iterator[RunRecord]:
    """Yield the records of a learner, one per study.

    Args:
        learner: The learner, after the last task.
        data: Data and first heads of the runs.
        notes: Notes for the user about the data.
        facts: Further fields of the records: times, the optimizer, trained blocks.
    """
    scenario, bank = learner.experiment.scenario, learner.experiment.studies
    entries, diverged = learner.log.entries, learner.log.diverged
    seen = [scenario.val_counts[: task.stop] for task in scenario.learnt]
    loss = bank[0].training.loss
    first = {"path": None, "digest": head_digest(data.head_for(loss)), **data.facts_for(loss)}
    for index, (name, study) in enumerate(zip(learner.ids, bank, strict=True)):
        head = learner.head(index)
        info: dict[str, Any] = {
            "id": name,
            "config": study.settings(),
            "seconds": float(learner.seconds[index]),
            "base": data.base.description or None,
            "new": data.new.description,
            "head": dict(first) if data.base.class_names else None,
            "notes": [*([diverged[name]] if name in diverged else []), *notes],
            "bank_size": len(bank),
            "loss_sample_rows": LOSS_SAMPLE_ROWS,
            **provenance(),
            "device": device_name(learner.method.device),
            "command": list(data.command),
            "tasks": [entry.description(index) for entry in entries],
        }
        if 1 < len(bank) <= MOST_IN_BANK:
            unsaid = set.intersection(*(each.unsaid for each in bank))
            named = [name for name in PER_HEAD if name not in unsaid]
            info["bank"] = [{name: each.value(name) for name in named} for each in bank]
        if head.feature_map is not None:
            info["feature_map"] = dict(head.feature_map)
        counts = zip(entries, seen, strict=True)
        yield RunRecord(
            path=None,
            info=cast(RunInfo, {**info, **facts}),
            classes=class_table(scenario),
            steps=pl.concat(entry.steps(index) for entry in entries),
            evaluations=pl.concat(entry.evaluations(index, each) for entry, each in counts),
            points=pl.concat(entry.point_table(index) for entry in entries),
            mistakes=pl.concat(entry.mistake_table(index) for entry in entries),
            head=head,
            top=learner.method.changed,
            study=study,
        )

"""The runs of a grid, under unique names, in banks that fit into memory; and their training."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from clinit.headtrain.events import BankStarted, Event
from clinit.headtrain.record.format import RunRecord, check_free, write_records
from clinit.headtrain.runs import RunData, train_bank
from clinit.headtrain.study.rules import LATER, PLACES
from clinit.headtrain.study.study import Study, by_stream, run_name, study_of
from clinit.headtrain.sweep.folder import SweepFolder, run_digest
from clinit.headtrain.train.heads import check_precision
from clinit.machine import choose_device, free_memory

MEMORY_SHARE = 0.5
"""Share of the free memory that the heads of a bank may take; the rest is for the data."""
CPU_BANK_SIZE = 12
"""Most runs per bank on a CPU, because a larger one is hardly faster and a kill loses more."""
_PARAMETER_COPIES = 4
"""Copies of weight and bias: themselves, their gradient, the two moments of AdamW."""
_LOGIT_COPIES = 5
"""Copies of the logits of a batch: themselves, their gradient, intermediates of the losses."""


@dataclass(frozen=True, slots=True)
class BankPlan:
    """Runs that are trained together: they share stream, seed, batches and pretrained head."""

    runs: tuple[Study, ...]
    recorded: int = 0
    """How many of them are already recorded. They are trained once more with the others, which
    so get the same numbers as without the interruption."""

    @property
    def seed(self) -> int:
        """Seed of all runs of the bank."""
        return self.runs[0].stream.seed


def head_bytes(*, num_classes: int, dim: int, batch_size: int) -> int:
    """Estimate the memory that one more head of a bank takes while it is trained."""
    parameters = _PARAMETER_COPIES * num_classes * (dim + 1)
    return 4 * (parameters + _LOGIT_COPIES * batch_size * num_classes)


def bank_limit(study: Study, *, num_classes: int, dim: int, asked: int | None = None) -> int:
    """Return how many runs a bank may hold: as many as fit into memory, and at most `asked`."""
    each = head_bytes(num_classes=num_classes, dim=dim, batch_size=study.stream.rows_per_batch)
    device = choose_device(study.training.device)
    fitting = max(1, int(MEMORY_SHARE * free_memory(device)) // each)
    if asked is None and device.type == "cpu":
        asked = CPU_BANK_SIZE
    return min(fitting, asked or fitting)


def compile_banks(
    runs: Iterable[Study], data: RunData, *, asked: int | None = None
) -> list[BankPlan]:
    """Put distinct runs that differ only in their heads into banks, in the order of the runs.

    The runs of a bank start from one pretrained head.

    Raises:
        DeviceError: If there is no such device.
    """
    banks = []
    for group in by_stream(runs, data.by_head):
        classes, dim = data.num_classes, data.base.train.dim
        limit = bank_limit(group[0], num_classes=classes, dim=dim, asked=asked)
        # Equal neighbours share a launch of the loss and of the optimizer.
        group.sort(
            key=lambda run: (run.training.loss, run.training.rate, run.training.weight_decay)
        )
        banks += [
            BankPlan(tuple(group[start : start + limit])) for start in range(0, len(group), limit)
        ]
    return banks


def banks_again(
    told: Iterable[Sequence[str]],
    runs: Mapping[str, Study],
    left: Container[str],
    data: RunData,
    *,
    asked: int | None = None,
) -> list[BankPlan]:
    """Return the banks that an earlier call has begun with and not finished, as they were.

    A bank is left out if one of its runs is no longer wanted, if it is larger than `asked`, or if
    its runs start from several heads by now.

    Args:
        told: Runs of each bank as listed in sweep.json, by their names in `runs`.
        runs: All runs that are wanted, by name.
        left: Names of the runs that are not recorded.
        data: The data of the runs.
        asked: Most runs of a bank.
    """
    banks, taken = [], set[str]()
    for names in told:
        chosen = [runs[name] for name in names if name in runs]
        recorded = sum(name not in left for name in names)
        is_whole = len(chosen) == len(names) and len(by_stream(chosen, data.by_head)) == 1
        if is_whole and recorded < len(names) <= (asked or len(names)) and not taken & {*names}:
            taken.update(names)
            banks.append(BankPlan(tuple(chosen), recorded))
    return banks


def run_names(runs: Sequence[Study], recorded: Iterable[Mapping[str, Any]] = ()) -> list[str]:
    """Name each run by its initialisation and scale, and by its varied settings.

    Settings that vary among `recorded`, the settings of existing runs in the folder, count
    too: a name never means two things there.
    """
    share = next((run.start.new_share for run in runs if run.reads_share), None)
    configs = [run.values() | ({} if run.reads_share else {"new_share": share}) for run in runs]
    # Heads alone have no plastic block, which distinguishes them from runs of top blocks.
    known = [*configs]
    for config in recorded if configs else ():
        before = {} if config.get("init", "random") == "random" else LATER
        known.append({**configs[0], **before, "top_blocks": 0, **config})
        study = study_of(config)
        if study is not None and not study.reads_share:
            known[-1]["new_share"] = share
    varied = [
        name
        for name in (configs[0] if configs else {})
        if name not in ("method", "init", "scale", *PLACES)
        and len({str(each[name]) for each in known}) > 1
    ]
    names = []
    for run in runs:
        idle = run.idle()
        told = [name for name in varied if name not in idle and run.value(name) is not None]
        names.append(run_name(run.settings(), told).replace("/", "_"))
    return names


@dataclass(frozen=True, slots=True)
class RunsRecorded:
    """`runs` more runs are recorded."""

    runs: int


@dataclass(frozen=True, slots=True)
class BankHalved:
    """A bank did not fit into the memory of the device: its halves are trained in turn."""

    runs: int


SweepEvent = Event | RunsRecorded | BankHalved
SweepObserver = Callable[[SweepEvent], None]
Trained = Iterator[tuple[BankPlan, list[RunRecord]]]
Train = Callable[[Sequence[BankPlan]], Trained]
"""Trains banks and yields each with its records, in any order."""


@dataclass(frozen=True, slots=True, eq=False)
class SweepPlan:
    """Which runs of a sweep are done and which are left."""

    names: dict[str, str]
    """Name of each run that is left, by its identity."""
    done: tuple[Study, ...]
    banks: tuple[BankPlan, ...]

    @property
    def num_left(self) -> int:
        """Number of runs that are not recorded."""
        return len(self.names)


def plan_sweep(
    runs: Sequence[Study], folder: SweepFolder, data: RunData, *, bank_size: int | None = None
) -> SweepPlan:
    """Group the runs that the folder lacks into banks; the banks of an earlier call stay."""
    by_digest = {run_digest(run): run for run in runs}
    left = {name: run for name, run in by_digest.items() if folder.record_of(run) is None}
    banks = banks_again(folder.banks, by_digest, left, data, asked=bank_size)
    taken = {run for bank in banks for run in bank.runs}
    banks += compile_banks(
        [run for run in left.values() if run not in taken], data, asked=bank_size
    )
    for training in (bank.runs[0].training for bank in banks):
        check_precision(training.precision, choose_device(training.device))
    named = zip(runs, run_names(runs, folder.configs), strict=True)
    return SweepPlan(
        names={run.identity: name for run, name in named if folder.record_of(run) is None},
        done=tuple(run for run in runs if folder.record_of(run) is not None),
        banks=tuple(banks),
    )


def run_sweep(plan: SweepPlan, folder: SweepFolder, train: Train, observer: SweepObserver) -> None:
    """Train the banks of `plan`; record each run as soon as its bank is trained.

    Raises:
        RecordError: If a record cannot be written. Those before it are kept, and so are those
            of the same bank that can be written.
        ClinitError: If a bank cannot be trained; the runs before it are recorded.
    """
    check_free(folder.path / name for name in plan.names.values())
    folder.remember(bank.runs for bank in plan.banks)
    for bank, records in train(plan.banks):
        trained = zip(bank.runs, records, strict=True)
        fresh = {run: record for run, record in trained if folder.record_of(run) is None}
        places = {run: folder.path / plan.names[run.identity] for run in fresh}
        write_records(
            [
                replace(record, info={**record.info, "id": places[run].name})
                for run, record in fresh.items()
            ],
            list(places.values()),
        )
        for run, place in places.items():
            folder.add(run, place)
        observer(RunsRecorded(len(places)))


def train_here(data: RunData, observer: SweepObserver) -> Train:
    """Return the function that trains banks one after another in this process."""

    def train(banks: Sequence[BankPlan]) -> Trained:
        for number, bank in enumerate(banks, start=1):
            observer(BankStarted(bank.runs, number, len(banks), bank.recorded))
            yield from _train_or_halve(bank)

    def _train_or_halve(bank: BankPlan) -> Trained:
        try:
            records = train_bank(data, bank.runs, observer=observer)
        except (torch.OutOfMemoryError, MemoryError):  # CuPy raises the latter
            if len(bank.runs) == 1:
                raise
            records = None
        if records is not None:
            yield bank, records
            return
        # Outside of the handler: the exception would keep the tensors of the bank alive.
        torch.cuda.empty_cache()
        observer(BankHalved(len(bank.runs)))
        middle = len(bank.runs) // 2
        for half in (bank.runs[:middle], bank.runs[middle:]):
            yield from _train_or_halve(BankPlan(half))

    return train

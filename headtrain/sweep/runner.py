"""Train what a sweep has not recorded yet, bank after bank, and record each run."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

import torch

from clinit.errors import CacheError, StorageError
from clinit.headtrain.events import BankStarted, Event
from clinit.headtrain.record.format import RunRecord, check_free, write_records
from clinit.headtrain.runs import RunData, train_bank
from clinit.headtrain.study import Study
from clinit.headtrain.sweep.folder import SweepFolder, run_digest
from clinit.headtrain.sweep.plan import BankPlan, banks_again, compile_banks, run_names
from clinit.ray_tasks import connected, run_tasks


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
    """Compile what the folder does not hold into banks; those of an earlier call stay."""
    by_digest = {run_digest(run): run for run in runs}
    recorded = {digest for digest, run in by_digest.items() if folder.record_of(run) is not None}
    again = banks_again(folder.banks, by_digest, recorded, asked=bank_size, key=data.by_head)
    taken = recorded.union(run_digest(run) for bank in again for run in bank.runs)
    banks = again + compile_banks(
        [run for digest, run in by_digest.items() if digest not in taken],
        num_classes=data.num_classes,
        dim=data.base.train.dim,
        asked=bank_size,
        key=data.by_head,
    )
    names = run_names(runs, folder.configs)
    return SweepPlan(
        names={
            run.identity: name
            for run, name in zip(runs, names, strict=True)
            if folder.record_of(run) is None
        },
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
        observer(RunsRecorded(_write(plan, folder, bank, records)))


def train_here(data: RunData, observer: SweepObserver, *, command: Sequence[str] = ()) -> Train:
    """Return the function that trains banks one after another in this process."""

    def train(banks: Sequence[BankPlan]) -> Trained:
        for number, bank in enumerate(banks, start=1):
            observer(BankStarted(bank.runs, number, len(banks), bank.recorded))
            yield from _train_or_halve(bank)

    def _train_or_halve(bank: BankPlan) -> Trained:
        try:
            records = train_bank(data, bank.runs, observer=observer, command=command)
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
        for half in bank.halves():
            yield from _train_or_halve(half)

    return train


def _write(
    plan: SweepPlan, folder: SweepFolder, bank: BankPlan, records: Sequence[RunRecord]
) -> int:
    """Record the runs of a bank that were left; return how many."""
    trained = zip(bank.runs, records, strict=True)
    fresh = {run: record for run, record in trained if folder.record_of(run) is None}
    places = {run: folder.path / plan.names[run.identity] for run in fresh}
    named = [
        replace(record, info={**record.info, "id": places[run].name})
        for run, record in fresh.items()
    ]
    write_records(named, list(places.values()))
    for run, place in places.items():
        folder.add(run, place)
    return len(places)


SHARED = (
    "features that stay on disk are read by every node: the caches must be in a folder that all"
    " nodes share, under the same path"
)


@contextmanager
def train_on_ray(data: RunData, address: str, *, command: Sequence[str] = ()) -> Iterator[Train]:
    """Connect to a Ray cluster; yield what trains each bank as a task of one GPU or one core.

    The data goes through Ray's object store, once per node, and the records come back through it,
    so no folder is shared, unless features stay on disk: those every node reads itself.

    Raises:
        ClusterError: If Ray is not installed or there is no cluster at `address`.
    """
    with connected(address) as ray:
        share = {"num_gpus": 1} if ray.cluster_resources().get("GPU") else {"num_cpus": 1}
        stored = ray.put(data)

        def train(banks: Sequence[BankPlan]) -> Trained:
            calls = [(stored, bank, tuple(command)) for bank in banks]
            for trained in run_tasks(ray, _train_on_node, calls, **share):
                yield from trained

        yield train


def _train_on_node(
    data: RunData, bank: BankPlan, command: Sequence[str]
) -> list[tuple[BankPlan, list[RunRecord]]]:
    """Train one bank on a node of the cluster; its events stay there."""
    import ray

    try:
        trained = list(train_here(data, lambda event: None, command=command)([bank]))
    except (CacheError, StorageError) as error:
        if data.is_loaded:
            raise
        raise type(error)(
            f"{error} (on the node {socket.gethostname()}); {SHARED}; a copy is another file",
            remedy="Give more --memory, so that features are loaded and travel through Ray, or"
            " share the folder of the caches.",
        ) from error
    node = ray.get_runtime_context().get_node_id()
    return [
        (part, [replace(record, info={**record.info, "ray_node": node}) for record in records])
        for part, records in trained
    ]

"""Plan and train the runs of a grid, under unique names, in banks that fit into memory.

A sweep reads its folder, which has one record per run, before it trains. It does not train recorded
runs again, and refuses records of other data.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from clinit.headtrain.protocol.events import RunsRecorded
from clinit.headtrain.protocol.experiment import RunData
from clinit.headtrain.protocol.record import format as record_file
from clinit.headtrain.protocol.record.info import settings_of
from clinit.headtrain.protocol.runs import BankRecords, check_data
from clinit.headtrain.protocol.study.parts import Training
from clinit.headtrain.protocol.study.rules import EARLIER, PLACES
from clinit.headtrain.protocol.study.study import Study, by_stream, identity_of, run_name, study_of
from clinit.headtrain.protocol.train.heads import check_precision
from clinit.machine import choose_device, free_memory
from clinit.observer import Observer

MEMORY_SHARE = 0.5
"""Share of the free memory that the heads of a bank may take; the rest is for the data."""
CPU_BANK_SIZE = 12
"""Maximum runs per bank on a CPU: larger banks are hardly faster, and a kill loses more runs."""
_PARAMETER_COPIES = 4
"""Copies of weight and bias: parameters, gradient, the two moments of AdamW."""
_LOGIT_COPIES = 5
"""Copies of the logits of a batch: logits, gradient, intermediates of the losses."""


StudyBank = Sequence[Study]
"""Runs that are trained together: they share stream, seed, batches and pretrained head."""


def bank_limit(study: Study, *, num_classes: int, dim: int, asked: int | None = None) -> int:
    """Return the largest size of a bank that fits into memory, at most `asked`."""
    logits = _LOGIT_COPIES * study.stream.rows_per_batch * num_classes
    of_head = 4 * (_PARAMETER_COPIES * num_classes * (dim + 1) + logits)
    device = choose_device(study.training.device)
    fitting = max(1, int(MEMORY_SHARE * free_memory(device)) // of_head)
    if asked is None and device.type == "cpu":
        asked = CPU_BANK_SIZE
    return min(fitting, asked or fitting)


def compile_banks(
    runs: Iterable[Study], data: RunData, *, asked: int | None = None
) -> list[StudyBank]:
    """Put distinct runs that differ only in their heads into banks, in the order of the runs.

    All runs of a bank start from the same pretrained head.

    Raises:
        DeviceError: If the device is absent.
    """
    banks: list[StudyBank] = []
    for group in by_stream(runs, data.heads):
        classes, dim = data.num_classes, data.base.train.dim
        limit = bank_limit(group[0], num_classes=classes, dim=dim, asked=asked)
        # Equal neighbours share a launch of the loss and of the optimizer.
        group.sort(key=lambda r: (r.training.loss, r.training.rate, r.training.weight_decay))
        banks += [group[start : start + limit] for start in range(0, len(group), limit)]
    return banks


def begun_banks(runs: Sequence[Study], folder: SweepFolder) -> Iterator[StudyBank]:
    """Yield the banks of which some runs are recorded and some are left.

    Such banks are trained again as a whole, because last bits of a loss depend on the whole bank.
    """
    by_identity = {run.identity: run for run in runs}
    recorded: dict[tuple[Study, str], list[Study]] = {}
    for run in runs:
        if told := folder.banks.get(run.identity):
            recorded.setdefault((run.shared, str(told)), []).append(run)
    for first, *others in recorded.values():
        told = folder.banks[first.identity]
        if 1 + len(others) < len(told):
            names = (first.changed(each).identity for each in told)
            bank = [by_identity[name] for name in names if name in by_identity]
            if len(bank) == len(told):
                yield bank


def run_names(runs: Sequence[Study], recorded: Iterable[Mapping[str, Any]] = ()) -> list[str]:
    """Name each run by its initialisation and scale, and by its varied settings.

    Varied settings include settings that differ from `recorded`, the settings of existing runs in
    the folder, so that no two runs in a folder have the same name.
    """
    recorded = list(recorded)
    share = next((run.start.new_share for run in runs if run.reads_share), None)
    configs = [run.values() | ({} if run.reads_share else {"new_share": share}) for run in runs]
    # `top_blocks` 0 distinguishes runs of heads alone from runs of top blocks.
    known = [*configs]
    for config in recorded if configs else ():
        before = {} if config.get("init", "random") == "random" else EARLIER
        known.append({**configs[0], **before, "top_blocks": 0, **config})
        with suppress(ValueError):  # of another version
            if not study_of(config).reads_share:
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


@dataclass(frozen=True, slots=True, eq=False)
class SweepPlan:
    """The runs of a sweep that are left, and the banks in which they are trained."""

    names: dict[str, str]
    """Name of each run that is left, by its identity."""
    banks: Sequence[StudyBank]


def plan_sweep(
    runs: Sequence[Study], folder: SweepFolder, data: RunData, *, bank_size: int | None = None
) -> SweepPlan:
    """Group the runs that the folder lacks into banks."""
    begun = [*begun_banks(runs, folder)]
    again = {run for bank in begun for run in bank}
    left = [run for run in runs if run.identity not in folder.recorded and run not in again]
    banks = [*begun, *compile_banks(left, data, asked=bank_size)]
    for training in (bank[0].training for bank in banks):
        check_precision(training.precision, choose_device(training.device))
    named = zip(runs, run_names(runs, folder.configs), strict=True)
    names = {run.identity: name for run, name in named if run.identity not in folder.recorded}
    return SweepPlan(names, banks)


def run_sweep(plan: SweepPlan, folder: SweepFolder, banks: BankRecords, observer: Observer) -> None:
    """Record each run of `plan` as soon as its bank is trained.

    Raises:
        RecordError: If a record cannot be written; earlier records are kept.
        ClinitError: If a bank cannot be trained; runs of earlier banks are recorded.
    """
    record_file.check_free(folder.path / name for name in plan.names.values())
    for bank, records in banks:
        trained = zip(bank, records, strict=True)
        fresh = {run: record for run, record in trained if run.identity not in folder.recorded}
        for run, record in fresh.items():
            place = folder.path / plan.names[run.identity]
            record_file.write_record(replace(record, info={**record.info, "id": place.name}), place)
            folder.recorded[run.identity] = place
        observer(RunsRecorded(len(fresh)))


_KEPT = "Existing records there are kept. Give their caches and heads, or another --out."


@dataclass(frozen=True, slots=True, eq=False)
class SweepFolder:
    """The folder of a sweep, claimed by this process."""

    path: Path
    recorded: dict[str, Path] = field(default_factory=dict)
    """Records by the identity of their run."""
    configs: list[Mapping[str, Any]] = field(default_factory=list)
    """The settings of all recorded runs."""
    banks: dict[str, Sequence[Mapping[str, Any]]] = field(default_factory=dict)
    """Differing settings of all heads in the bank of each recorded run, by its identity."""


def open_folder(path: Path, data: RunData, losses: set[str]) -> SweepFolder:
    """Read the folder of a sweep, which this process has claimed.

    Args:
        path: The folder.
        data: The data of the sweep's runs.
        losses: Losses of the sweep's runs; each loss has its pretrained head.

    Raises:
        RecordError: If a record was made with other caches or another pretrained head, or is
            damaged.
    """
    found = SweepFolder(path)
    for folder in record_file.find_records(path):
        stored = record_file.read_info(folder)
        with_head = stored["config"].get("loss", Training().loss) in losses
        check_data(folder, stored, data, with_head=with_head, remedy=_KEPT)
        found.configs.append(settings_of(stored))
        identity = identity_of(found.configs[-1])
        found.recorded[identity], found.banks[identity] = folder, stored.get("bank", ())
    return found

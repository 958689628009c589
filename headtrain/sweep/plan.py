"""Runs under unique names, in banks that fit into memory."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from clinit.headtrain.study import PLACES, Study, by_stream, run_name
from clinit.headtrain.train.heads import check_precision
from clinit.machine import choose_device, free_memory

MEMORY_SHARE = 0.5
"""Share of the free memory that the heads of a bank may take; the rest is for the data."""
CPU_BANK_SIZE = 12
"""Most runs per bank on a CPU, where a larger one is hardly faster and a kill loses more."""
_PARAMETER_COPIES = 4
"""Copies of weight and bias: themselves, their gradient, the two moments of AdamW."""
_LOGIT_COPIES = 5
"""Copies of the logits of a batch: themselves, their gradient, intermediates of the losses."""


@dataclass(frozen=True, slots=True)
class BankPlan:
    """Runs that are trained together: they share stream, seed, batches and pretrained head."""

    runs: tuple[Study, ...]
    recorded: int = 0
    """How many of them are recorded already. They are trained once more beside the others, which
    so get the same numbers as without the interruption."""

    @property
    def seed(self) -> int:
        """Seed of all runs of the bank."""
        return self.runs[0].stream.seed

    def halves(self) -> tuple[BankPlan, BankPlan]:
        """Return two banks with half of the runs each."""
        middle = len(self.runs) // 2
        return BankPlan(self.runs[:middle]), BankPlan(self.runs[middle:])


def head_bytes(*, num_classes: int, dim: int, batch_size: int) -> int:
    """Estimate the memory that one more head of a bank takes while it is trained."""
    parameters = _PARAMETER_COPIES * num_classes * (dim + 1)
    return 4 * (parameters + _LOGIT_COPIES * batch_size * num_classes)


def bank_limit(study: Study, *, num_classes: int, dim: int, asked: int | None = None) -> int:
    """Return how many runs a bank may hold: what fits into memory, and at most `asked`."""
    each = head_bytes(num_classes=num_classes, dim=dim, batch_size=study.stream.rows_per_batch)
    device = choose_device(study.training.device)
    fitting = max(1, int(MEMORY_SHARE * free_memory(device)) // each)
    if asked is None and device.type == "cpu":
        asked = CPU_BANK_SIZE
    return min(fitting, asked or fitting)


def compile_banks(
    runs: Iterable[Study],
    *,
    num_classes: int,
    dim: int,
    asked: int | None = None,
    key: Mapping[str, str] | None = None,
) -> list[BankPlan]:
    """Put runs that differ only in their heads into banks, in the order in which they come.

    Args:
        runs: Distinct runs.
        num_classes: Rows of a head at the end of the stream, for the estimate of memory.
        dim: Width of a feature vector, for the same estimate.
        asked: Most runs of a bank.
        key: By loss, which pretrained head its runs start from: a bank starts from one.

    Raises:
        DeviceError: If there is no such device, or it does not compute in a precision asked for.
    """
    banks = []
    for group in by_stream(runs, key or {}):
        training = group[0].training
        check_precision(training.precision, choose_device(training.device))
        limit = bank_limit(group[0], num_classes=num_classes, dim=dim, asked=asked)
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
    recorded: Container[str],
    *,
    asked: int | None = None,
    key: Mapping[str, str] | None = None,
) -> list[BankPlan]:
    """Return the banks that an earlier call has begun with and not finished, as they were.

    A bank is left out if one of its runs is no longer wanted, or if it is larger than `asked`.

    Args:
        told: Runs of each bank as sweep.json tells them, by their names in `runs`.
        runs: All runs that are wanted, by name.
        recorded: Names of the runs that are recorded.
        asked: Most runs of a bank.
        key: By loss, which pretrained head its runs start from.

    Raises:
        DeviceError: As in `compile_banks`.
    """
    banks, taken = [], set[str]()
    for names in told:
        left = [name for name in names if name not in recorded]
        fits = len(set(names)) == len(names) and (asked is None or len(names) <= asked)
        if not left or not fits or not taken.isdisjoint(names) or not runs.keys() >= set(names):
            continue
        chosen = [runs[name] for name in names]
        if len({(run.shared, (key or {}).get(run.training.loss, "")) for run in chosen}) > 1:
            continue
        taken.update(names)
        training = chosen[0].training
        check_precision(training.precision, choose_device(training.device))
        banks.append(BankPlan(tuple(chosen), recorded=len(names) - len(left)))
    return banks


def run_names(runs: Sequence[Study], recorded: Iterable[Mapping[str, Any]] = ()) -> list[str]:
    """Name each run by its initialisation and scale, and by what varies.

    What varies among `recorded`, the settings of runs that are in the folder already, counts
    too: a name never means two things there.
    """
    configs = [run.values() for run in runs]
    # Heads alone have no plastic block: beside runs of top blocks that tells them apart.
    known = [{**configs[0], "top_blocks": 0, **config} for config in recorded] if configs else []
    known += configs
    varied = [
        name
        for name in (configs[0] if configs else {})
        if name not in ("method", "init", "scale", *PLACES)
        and len({str(each[name]) for each in known}) > 1
    ]
    return [_name(run, varied) for run in runs]


def _name(run: Study, varied: Sequence[str]) -> str:
    idle = run.idle()
    told = [name for name in varied if name not in idle and run.value(name) is not None]
    return run_name(run.settings(), told).replace("/", "_")

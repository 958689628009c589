"""What the statistics of a closed form take, said and checked before anything is read."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from clinit.errors import MachineError
from clinit.extract.device import choose_device
from clinit.headtrain.closed.fecam import own_covariances
from clinit.headtrain.stream.scenario import Scenario
from clinit.headtrain.study import Study
from clinit.machine import free_memory

SAID_FROM = 2**28
"""Bytes from which on memory is worth a note."""
_GRAM_COPIES = 5
"""A Gram matrix, what is solved with, its factor, and what BLAS turns round: measured."""
_PATH_COPIES = 6
"""Besides, where a task has more rows than random features: another Gram matrix for lambda, its
eigenvectors, and the workspace of the decomposition."""


@dataclass(frozen=True, slots=True)
class Need:
    """What a closed form holds at its peak."""

    size_bytes: int
    what: str
    remedy: str


def memory_notes(scenario: Scenario, study: Study, dim: int) -> list[str]:
    """Return a note where the statistics of a study are large.

    Raises:
        MachineError: If they take more than there is.
    """
    device = choose_device(study.training.device)
    need = need_of(scenario, study, dim)
    if need is None or need.size_bytes < SAID_FROM:
        return []
    free = free_memory(device)
    if need.size_bytes > free:
        raise MachineError(
            f"{need.what} take {_gigabytes(need.size_bytes)} of memory, but {_gigabytes(free)} are"
            f" free{_place(device)}",
            remedy=need.remedy,
        )
    return [f"{need.what} take {_gigabytes(need.size_bytes)} of memory{_place(device)}"]


def need_of(scenario: Scenario, study: Study, dim: int) -> Need | None:
    """Return what a study needs; None where it is no more than a few matrices of the features."""
    closed = study.closed
    match study.stream.method:
        case "ranpac":
            width = closed.ranpac.width
            counts = scenario.train_counts
            most = max(int(counts[task.rows].sum()) for task in scenario.learnt)
            copies = _GRAM_COPIES
            if closed.ranpac.lam == "auto" and most > width:
                copies += _PATH_COPIES
            return Need(
                8 * (copies * width**2 + 2 * scenario.num_classes * width),
                f"sums and solves of {width:,} random features",
                "Give a smaller --ranpac-width.",
            )
        case "klda":
            width, members = closed.klda.width, closed.klda.members
            own = members * (width**2 + 2 * scenario.num_classes * width)
            return Need(
                8 * (own + _GRAM_COPIES * width**2),
                f"sums and solves of {members:,} times {width:,} random features",
                "Give a smaller --klda-width or fewer --klda-members.",
            )
        case "fecam":
            classes = own_covariances(scenario.train_counts[: scenario.learnt[-1].stop])
            return Need(
                4 * classes * dim**2 + 8 * _GRAM_COPIES * dim**2,
                f"the matrices of {classes:,} classes, {dim:,} x {dim:,} each,",
                "Take --method slda, which has one covariance for all classes, or a backbone with"
                " narrower features.",
            )
    return None


def _place(device: torch.device) -> str:
    return f" on {device}" if device.type == "cuda" else ""


def _gigabytes(size: int) -> str:
    return f"{size / 1e9:,.2f} GB"

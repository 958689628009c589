"""The closed form of a study.

SimpleCIL: the class whose mean has the largest cosine with the feature.

    cos(h, mu_c) = h.u_c / |h|,    u_c = mu_c / |mu_c|,

and |h| is the same for all classes: the order is that of a linear head with rows u_c and no bias.

Source: D.-W. Zhou, Z.-W. Cai, H.-J. Ye, D.-C. Zhan, Z. Liu, "Revisiting class-incremental learning
with pre-trained models: generalizability and adaptivity are all you need", IJCV 2025.

What the statistics of a closed form take, said and checked before anything is read.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float

from clinit.errors import MachineError
from clinit.headtrain.array import beside, namespace, widen
from clinit.headtrain.closed.discriminants import Klda, Slda
from clinit.headtrain.closed.fecam import Fecam, own_covariances
from clinit.headtrain.closed.interface import (
    Arrival,
    ClosedForm,
    Solution,
    StoredHead,
    linear_scores,
)
from clinit.headtrain.closed.ranpac import Ranpac
from clinit.headtrain.rows import Rows
from clinit.headtrain.start.task_start import rule_out
from clinit.headtrain.statistics.moments import add_by_class, cut
from clinit.headtrain.stream.scenario import Scenario
from clinit.headtrain.study import Study
from clinit.machine import choose_device, free_memory


class SimpleCil:
    """Sums of the rows of each class; memory O(C d)."""

    block_values = 0

    def __init__(self, zeros: Float[Any, " dim"]) -> None:
        """Begin with no class; `zeros` says the library, the device and the width."""
        self._sums = zeros[None, :][:0, :]
        self._has_data = np.zeros(0, dtype=bool)
        self._rows = Rows(self._sums, zeros[:0])

    def learn(self, arrival: Arrival) -> Solution:
        """Add the sums of the classes that arrive."""
        xp = namespace(self._sums)
        with arrival.watch.phase("statistics"):
            more = arrival.num_classes - len(self._has_data)
            place = beside(self._sums, np.zeros((more, self._sums.shape[1])))
            self._sums = xp.concat([self._sums, place])
            self._has_data = np.concatenate([self._has_data, np.zeros(more, dtype=bool)])
            for rows, labels in cut(arrival.features, arrival.labels):
                add_by_class(self._sums, xp.astype(widen(rows), xp.float64), labels)
                self._has_data[labels] = True
        with arrival.watch.phase("solve"):
            self._rows = self._unit_means()
        return Solution()

    def scores(self, features: Float[Any, "rows dim"]) -> Float[Any, "rows classes"]:
        """Return |h| times the cosine with each class mean."""
        return linear_scores(self._rows, features)

    def head(self) -> StoredHead:
        """Return the unit class means."""
        return StoredHead(self._rows)

    def _unit_means(self) -> Rows:
        """Return the sums, which point where the means do, scaled to length one."""
        xp = namespace(self._sums)
        norms = xp.sqrt(xp.sum(self._sums**2, axis=1))
        unit = self._sums / xp.where(norms > 0, norms, 1.0)[:, None]
        bias = beside(unit, np.zeros(len(self._has_data)))
        return rule_out(Rows(unit, bias), self._has_data)


LINEAR = frozenset({"slda", "simplecil"})
"""Methods whose scores are those of a linear head on the features themselves."""


def closed_form(
    study: Study,
    zeros: Float[Any, " dim"],
    place: Callable[[np.ndarray], Any] = np.asarray,
) -> ClosedForm:
    """Return the method of a study, which has seen nothing yet.

    Args:
        study: With one of the methods `CLOSED_METHODS`.
        zeros: As wide as a feature, in float64; it says the library and the device.
        place: Puts arrays where `zeros` are.
    """
    closed, seed = study.closed, study.stream.seed
    match study.stream.method:
        case "slda":
            return Slda(closed.slda, zeros)
        case "simplecil":
            return SimpleCil(zeros)
        case "fecam":
            return Fecam(closed.fecam, zeros)
        case "klda":
            return Klda(closed.klda, zeros, seed=seed, place=place)
        case "ranpac":
            return Ranpac(closed.ranpac, zeros, seed=seed, place=place)
    raise ValueError(f"{study.stream.method!r} is no closed form")


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

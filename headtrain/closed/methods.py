"""The closed form of a study, the memory that it takes, and SimpleCIL.

SimpleCIL: the class whose mean has the largest cosine with the feature.

    cos(h, mu_c) = h.u_c / |h|,    u_c = mu_c / |mu_c|,

and |h| is the same for all classes: the order is that of a linear head with rows u_c and no bias.

Source: D.-W. Zhou, Z.-W. Cai, H.-J. Ye, D.-C. Zhan, Z. Liu, "Revisiting class-incremental learning
with pre-trained models: generalizability and adaptivity are all you need", IJCV 2025.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from jaxtyping import Float

from clinit.errors import MachineError
from clinit.headtrain.array import beside, namespace, widen
from clinit.headtrain.closed.discriminants import Klda, Slda
from clinit.headtrain.closed.fecam import Fecam
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
from clinit.headtrain.study.study import Study
from clinit.machine import choose_device, free_memory
from clinit.words import size_text


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


def closed_form(study: Study, zeros: Float[Any, " dim"]) -> ClosedForm:
    """Return the method of a study, which has seen nothing yet.

    Args:
        study: With one of the methods `CLOSED_METHODS`.
        zeros: As wide as a feature, in float64; it says the library and the device.
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
            return Klda(closed.klda, zeros, seed=seed)
        case "ranpac":
            return Ranpac(closed.ranpac, zeros, seed=seed)
    raise ValueError(f"{study.stream.method!r} is no closed form")


_GRAM_COPIES = 5
"""A Gram matrix, what is solved with, its factor, and what BLAS turns round: measured."""
_PATH_COPIES = 6
"""Besides, where a task has more rows than random features: another Gram matrix for lambda, its
eigenvectors, and the workspace of the decomposition."""


def check_memory(scenario: Scenario, study: Study, dim: int) -> None:
    """Check that the statistics of a study fit, if they are more than a few matrices.

    Raises:
        MachineError: If they do not.
    """
    need, what, remedy = needed(scenario, study, dim)
    free = free_memory(choose_device(study.training.device))
    if need > free:
        raise MachineError(
            f"{what} take {size_text(need)} of memory, but {size_text(free)} are free",
            remedy=f"Give {remedy}.",
        )


def needed(scenario: Scenario, study: Study, dim: int) -> tuple[int, str, str]:
    """Return the bytes that a study needs at its peak, for what, and what would need less."""
    closed, counts = study.closed, scenario.train_counts
    match study.stream.method:
        case "ranpac":
            width, copies = closed.ranpac.width, _GRAM_COPIES
            most = max(int(counts[task.rows].sum()) for task in scenario.learnt)
            if closed.ranpac.lam == "auto" and most > width:
                copies += _PATH_COPIES
            size = 8 * (copies * width**2 + 2 * scenario.num_classes * width)
            what = f"sums and solves of {width:,} random features"
            return size, what, "a smaller --ranpac-width"
        case "klda":
            width, members = closed.klda.width, closed.klda.members
            own = members * (width**2 + 2 * scenario.num_classes * width)
            what = f"sums and solves of {members:,} times {width:,} random features"
            remedy = "a smaller --klda-width or fewer --klda-members"
            return 8 * (own + _GRAM_COPIES * width**2), what, remedy
        case "fecam":
            classes = int((counts[: scenario.learnt[-1].stop] > 1).sum())  # with a covariance
            what = f"the matrices of {classes:,} classes, {dim:,} x {dim:,} each,"
            remedy = "--method slda, which has one covariance for all, or narrower features"
            return 4 * classes * dim**2 + 8 * _GRAM_COPIES * dim**2, what, remedy
    return 0, "", ""

"""The closed form of a study, the memory that it takes, and SimpleCIL.

SimpleCIL predicts the class whose mean has the largest cosine with the feature.

    cos(h, mu_c) = h.u_c / |h|,    u_c = mu_c / |mu_c|,

and |h| is the same for all classes, so that a linear head with rows u_c and no bias gives the same
order.

Source: D.-W. Zhou, Z.-W. Cai, H.-J. Ye, D.-C. Zhan, Z. Liu, "Revisiting class-incremental learning
with pre-trained models: generalizability and adaptivity are all you need", IJCV 2025.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from jaxtyping import Float

from clinit.errors import MachineError
from clinit.headtrain.array import beside, float64_of, namespace
from clinit.headtrain.closed.discriminants import Klda, Slda
from clinit.headtrain.closed.fecam import Fecam
from clinit.headtrain.closed.interface import Arrival, ClosedForm, Solution
from clinit.headtrain.closed.moments import grown
from clinit.headtrain.closed.ranpac import Ranpac
from clinit.headtrain.rows import Rows
from clinit.headtrain.start.task_start import rule_out
from clinit.headtrain.statistics.moments import add_by_class, cut
from clinit.headtrain.stream.scenario import Scenario
from clinit.headtrain.study.study import Study
from clinit.machine import choose_device, free_memory
from clinit.words import size_text


class SimpleCil(ClosedForm):
    """Sums of the rows of each class; memory O(C d)."""

    def __init__(self, zeros: Float[Any, " dim"]) -> None:
        super().__init__(zeros)
        self._sums = self._rows.weight
        self._has_data = np.zeros(0, dtype=bool)

    def learn(self, arrival: Arrival) -> Solution:
        """Add the sums of the classes that arrive; scale the sums of all classes to length 1."""
        with arrival.watch.phase("statistics"):
            self._sums = grown(self._sums, arrival.num_classes)
            self._has_data = grown(self._has_data, arrival.num_classes)
            for rows, labels in cut(arrival.features, arrival.labels):
                add_by_class(self._sums, float64_of(rows), labels)
                self._has_data[labels] = True
            if (base := arrival.statistics) is not None:
                totals = base.totals.astype(np.float64)[:, None]
                self._sums = beside(self._sums, totals * base.class_means)
                self._has_data = base.totals > 0
        with arrival.watch.phase("solve"):
            xp = namespace(self._sums)
            norms = xp.sqrt(xp.sum(self._sums**2, axis=1))
            units = self._sums / xp.where(norms > 0, norms, 1.0)[:, None]
            self._rows = rule_out(Rows(units, xp.zeros_like(norms)), self._has_data)
        return Solution()


LINEAR = frozenset({"slda", "simplecil"})
"""Methods whose scores come from a linear head on the features themselves."""


def closed_form(study: Study, zeros: Float[Any, " dim"]) -> ClosedForm:
    """Return the method of a study, without any rows.

    Args:
        study: A study with one of `CLOSED_METHODS`.
        zeros: Zeros of the width of a feature, in float64; sets library and device.
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
    return Ranpac(closed.ranpac, zeros, seed=seed)


_GRAM_COPIES = 5
"""Measured peak of memory, as a multiple of one Gram matrix. It includes the matrix, the copy that
is solved, its factor, and the buffer in which BLAS transposes."""
_PATH_COPIES = 6
"""Further copies if a task has more rows than random features: another Gram matrix for lambda, its
eigenvectors, and the workspace of the decomposition."""


def check_memory(scenario: Scenario, study: Study, dim: int) -> None:
    """Check that the statistics of a study fit into memory, if they are large.

    Raises:
        MachineError: If they do not.
    """
    need = needed(scenario, study, dim)
    free = free_memory(choose_device(study.training.device))
    if need > free:
        raise MachineError(
            f"the statistics of {study.stream.method} take {size_text(need)} of memory, but"
            f" {size_text(free)} are free",
            remedy="Give narrower features (ranpac and klda: a smaller --ranpac-width or"
            " --klda-width), or --method slda.",
        )


def needed(scenario: Scenario, study: Study, dim: int) -> int:
    """Return the peak memory of the statistics of a study, in bytes; 0 if it is small."""
    ranpac, klda, counts = study.closed.ranpac, study.closed.klda, scenario.train_counts
    match study.stream.method:
        case "ranpac":
            most = max(int(counts[task.rows].sum()) for task in scenario.learnt)
            chooses = ranpac.lam == "auto" and most > ranpac.width
            copies = _GRAM_COPIES + (_PATH_COPIES if chooses else 0)
            return 8 * (copies * ranpac.width**2 + 2 * scenario.num_classes * ranpac.width)
        case "klda":
            own = klda.members * (klda.width**2 + 2 * scenario.num_classes * klda.width)
            return 8 * (own + _GRAM_COPIES * klda.width**2)
        case "fecam":
            classes = int((counts[: scenario.learnt[-1].stop] > 1).sum())  # with a covariance
            return 4 * classes * dim**2 + 8 * _GRAM_COPIES * dim**2
    return 0

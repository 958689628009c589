"""SimpleCIL predicts the class whose mean has the largest cosine with the feature.

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

from clinit.headtrain.heads.array import beside, float64_of, namespace
from clinit.headtrain.heads.closed.interface import Arrival, ClosedForm, Solution
from clinit.headtrain.heads.closed.moments import grown
from clinit.headtrain.heads.closed.solved import rule_out
from clinit.headtrain.heads.linear import Rows
from clinit.headtrain.heads.statistics.moments import add_by_class, cut


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

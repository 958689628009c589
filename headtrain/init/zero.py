"""Zero rows: weight and bias 0. With `calibrated`, the bias becomes that of the class prior."""

from __future__ import annotations

import array_api_compat

from clinit.headtrain.array import namespace
from clinit.headtrain.init.data import NewClasses, Rows


def zero_rows(data: NewClasses) -> Rows:
    """Return a row of zeros for each new class."""
    weight, classes = data.head.weight, data.stop - data.start
    xp, device = namespace(weight), array_api_compat.device(weight)
    return Rows(
        xp.zeros((classes, weight.shape[1]), dtype=xp.float64, device=device),
        xp.zeros(classes, dtype=xp.float64, device=device),
    )

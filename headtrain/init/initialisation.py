"""New rows, and how they came about."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from clinit.headtrain.least_squares.lambda_curve import LambdaCurve
from clinit.headtrain.rows import Rows


@dataclass(frozen=True, slots=True, eq=False)
class Initialisation:
    """New rows, and how they came to their scale."""

    rows: Rows
    factor: float = 1.0
    """What the raw rows were multiplied by; their mean for `row-norm`."""
    shift: float = 0.0
    """What was added to the biases."""
    loss_before: float | None = None
    """Class-balanced loss before the last search: of the raw rows, on the logits that calibration
    looks at, or of the rows that the fit starts from. None where there was no search."""
    loss_after: float | None = None
    steps: int | None = None
    """Steps of that search."""
    lam: float | None = None
    """Ridge of the least squares; None for the others."""
    curve: LambdaCurve | None = None
    """What lambdas were judged by; None unless one was chosen from the data."""
    library: str | None = None
    """What computed them: `numpy` or `cupy`; None for random rows, which are not computed."""

    def facts(self) -> Initialisation:
        """Return all but the rows, which would hold memory of the device."""
        return replace(self, rows=Rows(np.empty((0, 0)), np.empty(0)))

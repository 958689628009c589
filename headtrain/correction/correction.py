"""What a correction did to the new rows of one head."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from clinit.headtrain.rows import Rows


@dataclass(frozen=True, slots=True, eq=False)
class Correction:
    """New rows after their correction, and the two numbers that it consists of."""

    rows: Rows
    factor: float
    """What the trained weights were multiplied by."""
    shift: float = 0.0
    """What was added to the biases."""
    rows_aside: int | None = None
    """Rows that were kept aside to choose by; None where the correction looks at no row."""
    loss_before: float | None = None
    """Class-balanced cross entropy of these rows."""
    loss_after: float | None = None
    steps: int | None = None
    """Newton steps."""

    def facts(self) -> dict[str, Any]:
        """Return what a record says, without what the correction does not have."""
        values = {
            "factor": self.factor,
            "shift": self.shift,
            "rows_aside": self.rows_aside,
            "loss_before": self.loss_before,
            "loss_after": self.loss_after,
            "steps": self.steps,
        }
        return {name: value for name, value in values.items() if value is not None}

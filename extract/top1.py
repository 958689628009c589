"""Accuracy of a stored head on cached features: the number that says whether all is well."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int

from clinit.extract.head import Head


@dataclass(frozen=True, slots=True)
class Top1:
    """Rows whose largest logit is that of their class, over the head's whole width."""

    correct: int
    total: int
    """Valid rows whose class is among those of the head."""

    @property
    def percent(self) -> float | None:
        """Accuracy in percent; None where no row counts."""
        return 100 * self.correct / self.total if self.total else None

    def __add__(self, other: Top1) -> Top1:
        """Pool two sets of rows."""
        return Top1(self.correct + other.correct, self.total + other.total)


def head_rows(head: Head, class_names: tuple[str, ...]) -> Int[np.ndarray, " classes"]:
    """Return the row of `head` for each class, -1 where it has none of that name."""
    rows = {name: row for row, name in enumerate(head.class_names or ())}
    return np.array([rows.get(name, -1) for name in class_names], dtype=np.int64)


def top1(
    head: Head,
    features: Float[np.ndarray, "rows dim"],
    labels: Int[np.ndarray, " rows"],
    rows_of_classes: Int[np.ndarray, " classes"],
) -> Top1:
    """Return the accuracy of `head` on features whose class it knows."""
    targets = rows_of_classes[labels]
    known = targets >= 0
    if not known.any():
        return Top1(0, 0)
    logits = features[known].astype(np.float32) @ head.weight.T + head.bias
    return Top1(int((logits.argmax(axis=1) == targets[known]).sum()), int(known.sum()))

"""Features in memory: what every part of `headtrain` and `analysis` computes with."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int


@dataclass(frozen=True, slots=True, eq=False)
class FeatureSet:
    """Penultimate-layer features with their labels."""

    features: Float[np.ndarray, "rows dim"]
    """float16 or float32, as stored."""
    labels: Int[np.ndarray, " rows"]
    """int64, in [0, number of classes)."""
    class_names: tuple[str, ...]
    """One name per class; a class may have no row."""

    def __post_init__(self) -> None:
        if len(self.features) != len(self.labels):
            raise ValueError(f"{len(self.features)} features for {len(self.labels)} labels")
        if len(self.labels) and not (
            self.labels.min() >= 0 and self.labels.max() < len(self.class_names)
        ):
            raise ValueError(f"labels must lie in [0, {len(self.class_names)})")

    @property
    def dim(self) -> int:
        """Width of a feature vector."""
        return int(self.features.shape[1])

    def counts(self) -> Int[np.ndarray, " classes"]:
        """Return the number of rows of each class."""
        return np.bincount(self.labels, minlength=len(self.class_names))

"""Counts, sums and Gram matrix of arriving rows, with classes that are added as they arrive.

Every row has weight 1. `ClassStatistics` weights rows by the counts of their classes, which are
unknown in a stream.

Random features: a fixed layer drawn from a seed, applied block by block.

    h = max(0, W^T f),    W ~ N(0, 1), no bias

Source: M. D. McDonnell, D. Gong, A. Parvaneh, E. Abbasnejad, A. van den Hengel, "RanPAC: random
projections and pre-trained models for continual learning", NeurIPS 2023.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any

import array_api_compat
import numpy as np
from jaxtyping import Float, Int

from clinit.headtrain.heads.array import (
    FeatureRows,
    as_type,
    beside,
    namespace,
    slices,
    take,
    to_numpy,
)
from clinit.headtrain.heads.seeds import Draw, generator
from clinit.headtrain.heads.statistics.moments import MomentSums
from clinit.observer import Observer, Progressed, ignore

_DIAGONAL_BLOCK = 512


class ClassMoments(MomentSums):
    """n_c, S_c = sum of h over class c, and G = sum of h h^T over all rows, in float64."""

    @classmethod
    def like(cls, zeros: Float[Any, ...], width: int) -> ClassMoments:
        """Begin without classes and rows, in the library and on the device of `zeros`."""
        return cls.zeros(np.zeros(0), beside(zeros, np.zeros(width)))

    def grow(self, num_classes: int) -> None:
        """Add rows for classes that arrive."""
        self.counts = grown(self.counts, num_classes)
        self.weights = np.ones(num_classes)
        self.sums = grown(self.sums, num_classes)

    def add_mapped(
        self,
        features: FeatureRows,
        labels: Int[np.ndarray, " rows"],
        mapped: FeatureMap,
        observer: Observer = ignore,
    ) -> None:
        """Map rows block by block, and add them."""
        for block in slices(len(labels), mapped.block_rows):
            self.add(mapped(take(features, block)), labels[block])
            observer(Progressed("summing up rows", block.stop, len(labels)))

    def merge(self, other: ClassMoments) -> None:
        """Add the sums of other rows of the same classes, in place."""
        self.counts += other.counts
        self.sums += other.sums
        self.lower += other.lower


def grown(values: Any, num_classes: int) -> Any:
    """Append zeros for classes that arrive to an array with a row for each class."""
    xp, shape = namespace(values), (num_classes - values.shape[0], *values.shape[1:])
    more = xp.zeros(shape, dtype=values.dtype, device=array_api_compat.device(values))
    return xp.concat([values, more])


def plus_diagonal(matrix: Float[Any, "dim dim"], value: float) -> Float[Any, "dim dim"]:
    """Return matrix + value I with one copy, not three, of a matrix of perhaps a gigabyte."""
    system = matrix + 0.0
    for part in slices(system.shape[0], _DIAGONAL_BLOCK):
        system[part, part] += beside(system, value * np.eye(part.stop - part.start))
    return system


BLOCK_VALUES = 2**23
"""Mapped values that are computed at a time: 32 MB in float32."""


@dataclass(frozen=True, slots=True, eq=False)
class FeatureMap:
    """A fixed random layer, in float32."""

    seed: int
    weight: Float[Any, "dim width"]

    @classmethod
    def drawn(cls, zeros: Float[Any, " dim"], width: int, *, seed: int) -> FeatureMap:
        """Draw a layer, in the library and on the device of `zeros`."""
        random, shape = generator(seed, Draw.FEATURE_MAP), (zeros.shape[0], width)
        return cls(seed, beside(zeros, random.standard_normal(shape, dtype=np.float32)))

    @property
    def width(self) -> int:
        """Number of random features."""
        return int(self.weight.shape[1])

    @property
    def block_rows(self) -> int:
        """Number of rows that are mapped at a time."""
        return max(64, BLOCK_VALUES // self.width)

    def __call__(
        self, features: Float[Any, "rows dim"], columns: slice = slice(None)
    ) -> Float[Any, "rows width"]:
        """Return random features, or some columns, for rows on the device of the map."""
        xp = namespace(features)
        projected = as_type(features, xp.float32) @ self.weight[:, columns]
        return xp.maximum(projected, beside(projected, np.float32(0)))

    @property
    def description(self) -> dict[str, Any]:
        """The facts for a file: enough to draw the map again, and to verify it."""
        drawn = np.ascontiguousarray(to_numpy(self.weight), "<f4")
        return {
            "kind": "relu",
            "width": self.width,
            "input_dim": int(self.weight.shape[0]),
            "seed": self.seed,
            "member": 0,
            "sha256": hashlib.sha256(drawn.tobytes()).hexdigest(),
        }

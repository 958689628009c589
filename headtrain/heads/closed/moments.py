"""Counts, sums and Gram matrix of arriving rows, with classes that are added as they arrive.

Every row has weight 1. `ClassStatistics` weights rows by the counts of their classes, which are
unknown in a stream.

Random features: a fixed layer drawn from a seed, applied block by block.

    relu    h = max(0, W^T f),                   W ~ N(0, 1), no bias
    rff     h = sqrt(2 / M) cos(W^T f + b),      W ~ N(0, 2 gamma), b ~ U(0, 2 pi)

`rff` approximates the kernel k(x, y) = exp(-gamma |x - y|^2) by h(x).h(y).

Sources: M. D. McDonnell, D. Gong, A. Parvaneh, E. Abbasnejad, A. van den Hengel, "RanPAC: random
projections and pre-trained models for continual learning", NeurIPS 2023; A. Rahimi, B. Recht,
"Random features for large-scale kernel machines", NIPS 2007.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from typing import Any, Literal

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
from clinit.headtrain.heads.statistics.moments import MomentSums, symmetric
from clinit.observer import Observer, Progressed, ignore

_DIAGONAL_BLOCK = 512


class ClassMoments(MomentSums):
    """n_c, S_c = sum of h over class c, and G = sum of h h^T over all rows, in float64."""

    @classmethod
    def like(cls, zeros: Float[Any, ...], width: int) -> ClassMoments:
        """Begin without classes and rows, in the library and on the device of `zeros`."""
        return cls.zeros(np.zeros(0), beside(zeros, np.zeros(width)))

    @property
    def means(self) -> Float[Any, "classes dim"]:
        """Mean of each class; zero for a class without rows."""
        rows = beside(self.sums, np.maximum(self.counts, 1).astype(np.float64))
        return self.sums / rows[:, None]

    @property
    def within_covariance(self) -> Float[Any, "dim dim"]:
        """Mean over all rows of (h - mu_c)(h - mu_c)^T."""
        counts = beside(self.sums, self.counts.astype(np.float64))
        scatter = symmetric(self.lower)
        scatter -= (self.means * counts[:, None]).T @ self.means
        scatter /= max(1, int(self.counts.sum()))
        return scatter

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


Kind = Literal["relu", "rff"]
BLOCK_VALUES = 2**23
"""Mapped values that are computed at a time: 32 MB in float32."""
MEDIAN_ROWS = 1000
"""Rows whose distances set the width of a kernel: half a million pairs."""


@dataclass(frozen=True, slots=True, eq=False)
class FeatureMap:
    """A fixed random layer, in float32."""

    kind: Kind
    seed: int
    member: int
    """Number of the draw; maps of an ensemble differ only in this number."""
    weight: Float[Any, "dim width"]
    phase: Float[Any, " width"] | None = None
    """b of `rff`, in radians."""
    gamma: float | None = None

    @classmethod
    def relu(cls, dim: int, width: int, *, seed: int) -> FeatureMap:
        """Draw a ReLU layer."""
        drawn = generator(seed, Draw.FEATURE_MAP).standard_normal((dim, width), dtype=np.float32)
        return cls("relu", seed, 0, drawn)

    @classmethod
    def rff(cls, dim: int, width: int, *, gamma: float, seed: int, member: int = 0) -> FeatureMap:
        """Draw random Fourier features of the kernel exp(-gamma |x - y|^2)."""
        random = generator(seed, Draw.FEATURE_MAP, member)
        drawn = random.standard_normal((dim, width), dtype=np.float32)
        phase = (2 * np.pi * random.random(width)).astype(np.float32)
        scaled = np.float32(np.sqrt(2 * gamma)) * drawn
        return cls("rff", seed, member, scaled, phase, gamma)

    def beside(self, array: Any) -> FeatureMap:
        """Return the same layer in the library and on the device of `array`."""
        phase = None if self.phase is None else beside(array, self.phase)
        return replace(self, weight=beside(array, self.weight), phase=phase)

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
        if self.phase is None:
            return xp.maximum(projected, beside(projected, np.float32(0)))
        return xp.cos(projected + self.phase[columns]) * float(np.sqrt(2 / self.width))

    @property
    def description(self) -> dict[str, Any]:
        """The facts for a file: enough to draw the map again, and to verify it."""
        digest = hashlib.sha256()
        for drawn in (self.weight, *([] if self.phase is None else [self.phase])):
            digest.update(np.ascontiguousarray(to_numpy(drawn), "<f4").tobytes())
        found = {
            "kind": self.kind,
            "width": self.width,
            "input_dim": int(self.weight.shape[0]),
            "seed": self.seed,
            "member": self.member,
            "sha256": digest.hexdigest(),
        }
        return found if self.gamma is None else {**found, "gamma": self.gamma}


def median_gamma(features: FeatureRows, seed: int) -> float:
    """Return 1 / median squared distance between rows, over a draw of `MEDIAN_ROWS` rows.

    Return 1 if all rows are equal.
    """
    drawn = generator(seed, Draw.BANDWIDTH).permutation(features.shape[0])[:MEDIAN_ROWS]
    rows = to_numpy(take(features, np.sort(drawn))).astype(np.float64)
    rows -= rows.mean(axis=0)
    squares = (rows**2).sum(1)
    distances = squares[:, None] + squares - 2 * rows @ rows.T
    pairs = distances[np.triu_indices(len(rows), k=1)]
    median = float(np.median(pairs)) if len(pairs) else 0.0
    return 1 / median if median > 0 else 1.0

"""Counts, sums and Gram matrix of rows as they come; classes are added as they arrive.

Unlike `ClassStatistics`, whose weights are known before the first row, every row weighs one: of a
stream nobody knows the counts beforehand.

Random features: a fixed layer drawn from a seed, applied block by block.

    relu    h = max(0, W^T f),                   W ~ N(0, 1), no bias
    rff     h = sqrt(2 / M) cos(W^T f + b),      W ~ N(0, 2 gamma), b ~ U(0, 2 pi)

The second approximates the kernel k(x, y) = exp(-gamma |x - y|^2) by h(x).h(y).

Sources: M. D. McDonnell, D. Gong, A. Parvaneh, E. Abbasnejad, A. van den Hengel, "RanPAC: random
projections and pre-trained models for continual learning", NeurIPS 2023; A. Rahimi, B. Recht,
"Random features for large-scale kernel machines", NIPS 2007.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from jaxtyping import Bool, Float, Int

from clinit.headtrain.array import FeatureRows, beside, namespace, take, to_numpy, widen
from clinit.headtrain.closed.interface import Progress, silent
from clinit.headtrain.statistics.moments import MomentSums
from clinit.headtrain.stream.seeds import Draw, generator

_DIAGONAL_BLOCK = 512


class ClassMoments:
    """n_c, S_c = sum of h over class c, and G = sum of h h^T over all rows, in float64."""

    def __init__(self, zeros: Float[Any, " dim"]) -> None:
        """Begin with no class and no row.

        Args:
            zeros: A vector of zeros, in the library and on the device of the rows.
        """
        self._sums = MomentSums.zeros(np.zeros(0), zeros)

    @property
    def counts(self) -> Int[np.ndarray, " classes"]:
        """Rows of each class."""
        return self._sums.counts

    @property
    def present(self) -> Bool[np.ndarray, " classes"]:
        """Classes that have rows."""
        return self.counts > 0

    @property
    def sums(self) -> Float[Any, "classes dim"]:
        """Sum of the rows of each class."""
        return self._sums.sums

    @property
    def lower(self) -> Float[Any, "dim dim"]:
        """The Gram matrix; on the CPU its lower half alone."""
        return self._sums.lower

    @property
    def means(self) -> Float[Any, "classes dim"]:
        """Mean of each class; zero for a class without rows."""
        rows = beside(self.sums, np.maximum(self.counts, 1).astype(np.float64))
        return self.sums / rows[:, None]

    @property
    def within_covariance(self) -> Float[Any, "dim dim"]:
        """Mean over all rows of (h - mu_c)(h - mu_c)^T."""
        counts = beside(self.sums, self.counts.astype(np.float64))
        scatter = self._sums.symmetric_gram()
        scatter -= (self.means * counts[:, None]).T @ self.means
        scatter /= max(1, int(self.counts.sum()))
        return scatter

    def grow(self, num_classes: int) -> None:
        """Make place for classes that arrive."""
        more = num_classes - len(self.counts)
        xp = namespace(self.sums)
        place = beside(self.sums, np.zeros((more, self.sums.shape[1])))
        self._sums.counts = np.concatenate([self.counts, np.zeros(more, dtype=np.int64)])
        self._sums.weights = np.ones(num_classes)
        self._sums.sums = xp.concat([self.sums, place])

    def add(
        self,
        features: FeatureRows,
        labels: Int[np.ndarray, " rows"],
        mapped: FeatureMap,
        progress: Progress = silent,
    ) -> None:
        """Add rows, mapped block by block."""
        for start in range(0, len(labels), mapped.block_rows):
            block = slice(start, min(start + mapped.block_rows, len(labels)))
            self._sums.add(mapped(take(features, block)), labels[block])
            progress("summing up rows", block.stop, len(labels))

    def merge(self, other: ClassMoments) -> None:
        """Add the sums of other rows of the same classes, in place."""
        self._sums.counts += other.counts
        self._sums.sums += other.sums
        self._sums.lower += other.lower


def plus_diagonal(matrix: Float[Any, "dim dim"], value: float) -> Float[Any, "dim dim"]:
    """Return matrix + value I: one copy of a matrix that may be of a gigabyte, and not three."""
    system = matrix + 0.0
    for start in range(0, system.shape[0], _DIAGONAL_BLOCK):
        part = slice(start, min(start + _DIAGONAL_BLOCK, system.shape[0]))
        system[part, part] += beside(system, value * np.eye(part.stop - part.start))
    return system


Kind = Literal["relu", "rff"]
BLOCK_VALUES = 2**23
"""Mapped values that are made at a time: 32 MB in float32."""
MEDIAN_ROWS = 1000
"""Rows whose distances set the width of a kernel: half a million pairs."""


@dataclass(frozen=True, slots=True, eq=False)
class FeatureMap:
    """A fixed random layer, in float32."""

    kind: Kind
    seed: int
    member: int
    """Number of the draw: maps of an ensemble differ in it alone."""
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
    def dim(self) -> int:
        """Width of the features that it reads."""
        return int(self.weight.shape[0])

    @property
    def width(self) -> int:
        """Number of random features."""
        return int(self.weight.shape[1])

    @property
    def block_rows(self) -> int:
        """Rows to map at a time."""
        return max(64, BLOCK_VALUES // self.width)

    def __call__(
        self, features: Float[Any, "rows dim"], columns: slice = slice(None)
    ) -> Float[Any, "rows width"]:
        """Return the random features, or some columns of them, of rows that are where it is."""
        xp = namespace(features)
        read = xp.astype(widen(features), xp.float32)
        projected = read @ self.weight[:, columns]
        if self.phase is None:
            return xp.maximum(projected, beside(projected, np.float32(0)))
        return xp.cos(projected + self.phase[columns]) * float(np.sqrt(2 / self.width))

    @property
    def description(self) -> dict[str, Any]:
        """What a file says about it: enough to draw it again, and to see that it is the same."""
        digest = hashlib.sha256(np.ascontiguousarray(to_numpy(self.weight), "<f4").tobytes())
        if self.phase is not None:
            digest.update(np.ascontiguousarray(to_numpy(self.phase), "<f4").tobytes())
        found = {
            "kind": self.kind,
            "width": self.width,
            "input_dim": self.dim,
            "seed": self.seed,
            "member": self.member,
            "sha256": digest.hexdigest(),
        }
        return found if self.gamma is None else {**found, "gamma": self.gamma}


def median_gamma(features: FeatureRows, seed: int) -> float:
    """Return 1 / median squared distance between rows, over a draw of `MEDIAN_ROWS` of them.

    1 where there are no two different rows.
    """
    drawn = generator(seed, Draw.BANDWIDTH).permutation(features.shape[0])[:MEDIAN_ROWS]
    rows = to_numpy(take(features, np.sort(drawn))).astype(np.float64)
    rows -= rows.mean(axis=0)
    squares = (rows**2).sum(1)
    distances = squares[:, None] + squares - 2 * rows @ rows.T
    pairs = distances[np.triu_indices(len(rows), k=1)]
    median = float(np.median(pairs)) if len(pairs) else 0.0
    return 1 / median if median > 0 else 1.0

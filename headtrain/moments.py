"""The inner loop of the statistics: class sums and the Gram matrix of a block of rows.

The Gram matrix is symmetric, so BLAS `syrk` does half the work of a product. The class sums
are sums over segments of label-sorted rows: a product with one-hot targets would cost C / d
times as much as the Gram matrix itself.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float, Int, Num
from scipy.linalg.blas import dsyrk

from clinit.headtrain.array import namespace, on_gpu


@dataclass(slots=True, eq=False)
class MomentSums:
    """Running sums over rows; `add` changes them in place."""

    weights: Float[np.ndarray, " classes"]
    counts: Int[np.ndarray, " classes"]
    shift: Float[Any, " dim"]
    sums: Float[Any, "classes dim"]
    lower: Float[Any, "dim dim"]
    """Gram matrix in Fortran order; on the CPU its lower half only."""

    @classmethod
    def zeros(cls, weights: Float[np.ndarray, " classes"], shift: Float[Any, " dim"]) -> MomentSums:
        """Return empty sums about `shift`, in the namespace of `shift`."""
        xp = namespace(shift)
        classes, dim = len(weights), shift.shape[0]
        return cls(
            weights=weights,
            counts=np.zeros(classes, dtype=np.int64),
            shift=shift,
            sums=xp.zeros((classes, dim), dtype=xp.float64),
            lower=xp.zeros((dim, dim), dtype=xp.float64).T,
        )

    def add(self, features: Num[Any, "rows dim"], labels: Int[Any, " rows"]) -> None:
        """Add a block of rows."""
        if not len(labels):
            return
        xp = namespace(self.shift)
        labels = np.asarray(labels.get() if on_gpu(labels) else labels)
        if labels.min() < 0 or labels.max() >= len(self.counts):
            raise ValueError(f"labels must lie in [0, {len(self.counts)})")
        if (labels[1:] < labels[:-1]).any():
            order = np.argsort(labels, kind="stable")
            features, labels = features[order], labels[order]
        rows = xp.asarray(features, dtype=xp.float64) - self.shift
        starts = np.flatnonzero(np.r_[True, labels[1:] != labels[:-1]])
        classes = labels[starts]
        self.counts[classes] += np.diff(np.r_[starts, len(labels)])
        self.sums[classes] += xp.add.reduceat(rows, starts, axis=0)
        rows *= xp.asarray(np.sqrt(self.weights[labels]))[:, None]
        if on_gpu(rows):
            self.lower += rows.T @ rows
        else:
            self.lower = dsyrk(1.0, rows.T, beta=1.0, c=self.lower, lower=1, overwrite_c=1)

    def symmetric_gram(self) -> Float[Any, "dim dim"]:
        """Return the whole Gram matrix."""
        xp = namespace(self.lower)
        return xp.tril(self.lower) + xp.tril(self.lower, k=-1).T

"""The inner loop of the statistics: class sums and the Gram matrix of a block of rows.

The Gram matrix is symmetric, so BLAS `syrk` does half the work of a product. The class sums
are products with a sparse matrix of ones, one a row: dense one-hot targets would cost 2 C / d
times as much as the Gram matrix itself. (`np.add.reduceat` over label-sorted rows was 10 to
20 times slower than the sparse product.)
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float, Int, Num
from scipy.linalg.blas import dsyrk

from clinit.headtrain.array import namespace, on_gpu

Block = tuple[Any, Any]
"""Features (rows, dim) and their labels (rows,)."""


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

    def add(self, features: Num[Any, "rows dim"], labels: Int[np.ndarray, " rows"]) -> None:
        """Add a block of rows."""
        if not len(labels):
            return
        if labels.min() < 0 or labels.max() >= len(self.counts):
            raise ValueError(f"labels must lie in [0, {len(self.counts)})")
        xp = namespace(self.shift)
        rows = xp.astype(widen(xp.asarray(features)), xp.float64)
        rows -= self.shift
        self.counts += np.bincount(labels, minlength=len(self.counts))
        add_by_class(self.sums, rows, labels)
        rows *= xp.asarray(np.sqrt(self.weights[labels]))[:, None]
        if on_gpu(rows):
            self.lower += rows.T @ rows
        else:
            self.lower = dsyrk(1.0, rows.T, beta=1.0, c=self.lower, lower=1, overwrite_c=1)

    def symmetric_gram(self) -> Float[Any, "dim dim"]:
        """Return the whole Gram matrix."""
        xp = namespace(self.lower)
        return xp.tril(self.lower) + xp.tril(self.lower, k=-1).T


def add_by_class(
    sums: Float[Any, "classes dim"], rows: Float[Any, "rows dim"], labels: Int[np.ndarray, " rows"]
) -> None:
    """Add each row to the sum of its class, in place."""
    classes, column = np.unique(labels, return_inverse=True)
    sums[namespace(sums).asarray(classes)] += _membership(column, len(classes), rows) @ rows


def cut(features: Any, labels: Any, order: np.ndarray | None = None) -> Iterator[Block]:
    """Cut rows, or those of `order` in that order, into blocks that suit `MomentSums.add`.

    On the CPU a block is 2 MiB wide in float64, to stay in the caches; on the GPU 256 MiB.
    """
    size = 2**28 if on_gpu(features) else 2**21
    block_rows = max(256, size // (8 * max(1, features.shape[1])))
    for start in range(0, len(labels if order is None else order), block_rows):
        rows = slice(start, start + block_rows)
        if order is None:
            yield features[rows], labels[rows]
        else:
            picked = order[rows]
            yield features[namespace(features).asarray(picked)], labels[picked]


def widen(features: Num[Any, "rows dim"]) -> Num[Any, "rows dim"]:
    """Return float16 as float32. NumPy takes twelve times as long as torch for that."""
    if features.dtype != np.float16 or on_gpu(features):
        return features
    import torch

    # torch takes no negative strides, and warns of memory that may not be written.
    writable = np.ascontiguousarray(features) if features.flags.writeable else features.copy()
    return torch.from_numpy(writable).float().numpy()


def _membership(column: np.ndarray, classes: int, rows: Any) -> Any:
    """Return the sparse (classes, rows) matrix of ones that sums the rows of each class."""
    sparse = importlib.import_module("cupyx.scipy.sparse" if on_gpu(rows) else "scipy.sparse")
    xp = namespace(rows)
    order = np.argsort(column, kind="stable")
    pointer = np.concatenate([[0], np.cumsum(np.bincount(column, minlength=classes))])
    parts = (xp.ones(len(column)), xp.asarray(order), xp.asarray(pointer))
    return sparse.csr_matrix(parts, shape=(classes, len(column)))

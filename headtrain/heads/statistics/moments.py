"""The inner loop of the statistics: class sums and the Gram matrix of a block of rows.

On the CPU, BLAS `syrk` does half the work of a product for the Gram matrix, which is symmetric. The
class sums are products with a sparse matrix of ones, one per row, because dense one-hot targets
would cost 2 C / d times as much as the Gram matrix. `np.add.reduceat` over label-sorted rows was 10
to 20 times slower than the sparse product. On a GPU both are dense products. The product with ones
takes 2,048 rows at a time, and the classes between the first and the last of them, which are few if
rows are sorted by class.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

import array_api_compat
import numpy as np
from jaxtyping import Float, Int, Num
from scipy.sparse import csr_matrix

from clinit.headtrain.heads.array import (
    FeatureRows,
    beside,
    float64_of,
    is_slow_in_float64,
    namespace,
    slices,
    take,
)
from clinit.headtrain.heads.groups import Labels, Shares

Block = tuple[Any, ...]
"""Features (rows, dim), labels (rows,) and, unless all weights are 1, the weights of the rows;
labels and weights are NumPy arrays."""
Square = Float[Any, "dim dim"]
Order = Int[np.ndarray, " _"]
"""Numbers of rows, in the order in which they are read."""
CPU_BLOCK_BYTES = 2**21
"""Size of a block of features in float64 that stays in the caches."""
GPU_BLOCK_BYTES = 2**26
"""Size of a block on a GPU: products of 20,000 rows keep the GPU busy, in little of its memory."""
ONES_ROWS = 2048
"""Rows of a dense product with ones: 22 MB of ones for 1,365 classes."""


Sums = TypeVar("Sums", bound="MomentSums")


@dataclass(slots=True, eq=False)
class MomentSums:
    """Running sums over rows; `add` changes them in place."""

    weights: Float[np.ndarray, " classes"]
    counts: Num[np.ndarray, " classes"]
    shift: Float[Any, " dim"]
    sums: Float[Any, "classes dim"]
    lower: Square
    """Gram matrix in Fortran order; on the CPU its lower half only."""

    @classmethod
    def about(
        cls: type[Sums], weights: Float[np.ndarray, " classes"], shift: Float[Any, " dim"]
    ) -> Sums:
        """Return empty sums about `shift`, in the namespace of `shift`."""
        xp = namespace(shift)
        classes, dim, device = len(weights), shift.shape[0], array_api_compat.device(shift)
        return cls(
            weights=weights,
            counts=np.zeros(classes, dtype=np.int64),
            shift=shift,
            sums=xp.zeros((classes, dim), dtype=xp.float64, device=device),
            lower=xp.zeros((dim, dim), dtype=xp.float64, device=device).T,
        )

    def add(
        self, features: Num[Any, "rows dim"], labels: Labels, shares: Shares | None = None
    ) -> None:
        """Add a block of rows with weights `shares`; default: 1."""
        rows = float64_of(features)
        rows -= self.shift
        weights = self.weights[labels]
        self.counts = self.counts + np.bincount(labels, shares, minlength=len(self.counts))
        if shares is None:
            add_by_class(self.sums, rows, labels)
        else:
            add_by_class(self.sums, rows * beside(rows, shares)[:, None], labels)
            weights = weights * shares
        rows *= beside(rows, np.sqrt(weights))[:, None]
        self.lower = add_products(self.lower, rows)


def add_products(lower: Square, rows: Float[Any, "rows dim"]) -> Square:
    """Return lower + rows^T rows, in place; on the CPU its lower half only.

    Args:
        lower: In Fortran order.
        rows: In float64. Where float64 is slow, they are multiplied in float32 (not TF32) and
            added in float64: sums differ by about 1e-6.
    """
    if isinstance(rows, np.ndarray):
        from scipy.linalg.blas import dsyrk

        summed: np.ndarray = dsyrk(1.0, rows.T, beta=1.0, c=lower, lower=1, overwrite_c=1)
        return summed
    if is_slow_in_float64(rows):
        xp = namespace(rows)
        narrow = xp.astype(rows, xp.float32)
        lower += xp.astype(narrow.T @ narrow, xp.float64)
    else:
        lower += rows.T @ rows
    return lower


def symmetric(lower: Square) -> Square:
    """Return the symmetric matrix with this lower half."""
    xp = namespace(lower)
    if not isinstance(lower, np.ndarray):
        return xp.tril(lower) + xp.tril(lower, k=-1).T
    whole = lower.copy(order="F")  # in blocks, because a mask of a large matrix takes longer
    for rows in slices(len(whole), 256):
        whole[rows, rows.stop :] = lower[rows.stop :, rows].T
        whole[rows, rows] = np.tril(lower[rows, rows]) + np.tril(lower[rows, rows], k=-1).T
    return whole


def add_by_class(
    sums: Float[Any, "classes dim"], rows: Float[Any, "rows dim"], labels: Labels
) -> None:
    """Add each row to the sum of its class, in place; at least one row is required."""
    if isinstance(sums, np.ndarray):
        classes, column = np.unique(labels, return_inverse=True)
        pointer = np.concatenate([[0], np.cumsum(np.bincount(column))])
        ones, order = np.ones(len(labels)), np.argsort(column, kind="stable")
        sums[classes] += csr_matrix((ones, order, pointer), (len(classes), len(labels))) @ rows
        return
    xp = namespace(sums)
    for part in slices(len(labels), ONES_ROWS):
        of_part = labels[part]
        between = slice(int(of_part.min()), int(of_part.max()) + 1)
        numbers = beside(rows, np.arange(between.start, between.stop))
        ones = xp.astype(numbers[:, None] == beside(rows, of_part)[None, :], xp.float64)
        sums[between, :] += ones @ rows[part, :]


def cut(
    features: FeatureRows, labels: Labels, order: Order | None = None, shares: Shares | None = None
) -> Iterator[Block]:
    """Cut rows, or the rows `order` in that order, into blocks that suit `MomentSums.add`."""
    # The size depends on the device that computes, so that rows on disk give the same sums.
    size = CPU_BLOCK_BYTES if isinstance(take(features, slice(0)), np.ndarray) else GPU_BLOCK_BYTES
    block_rows = max(256, size // (8 * max(1, features.shape[1])))
    for rows in slices(len(labels if order is None else order), block_rows):
        picked = rows if order is None else order[rows]
        of_rows = (labels[picked],) if shares is None else (labels[picked], shares[picked])
        yield take(features, picked), *of_rows

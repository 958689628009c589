"""Evaluation of a whole bank: correct counts per class, and mean losses.

Features stay as they are stored; a block at a time is widened to float32 and multiplied with
all heads at once. Counts and losses are those of float32 logits, whatever the precision that the
bank is trained in: a lower one only settles what it can, see `clinit.headtrain.bank.first_look`.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from clinit.headtrain.bank.first_look import first_look
from clinit.headtrain.bank.heads import Bank
from clinit.headtrain.bank.precision import products_in
from clinit.headtrain.bank.rows import LabelledRows
from clinit.headtrain.losses import loss_named

BLOCK_VALUES = 2**19
"""Logits computed at a time: 2 MB stay in a core's cache while they are reduced."""
MIN_BLOCK_ROWS = 256
"""Fewer rows would leave the matrix product short of work; then heads come in turn."""
CUDA_BLOCK_VALUES = 2**28
"""On a CUDA device: 1 GB, so that a few launches cover the whole test set."""


def count_correct(bank: Bank, test: LabelledRows) -> Int[np.ndarray, "heads classes"]:
    """Count the rows of each class that each head labels right; the first of equal logits wins."""
    shape = (bank.num_heads, bank.num_classes)
    counts = torch.zeros(shape, dtype=torch.int64, device=bank.device)
    close = torch.zeros(len(test), bank.num_heads, dtype=torch.bool, device=bank.device)
    look = first_look(bank)
    for part, blocks in _blocks(bank, len(test)):
        features, labels = test.widened(part), test.labels[part]
        for heads in blocks:
            lead, margin = look(features, labels, heads)
            _add(counts[heads], labels, lead > margin)
            close[part, heads] = lead.abs() <= margin
    if close.any():  # one wait for a CUDA device where there is nothing to do, not one per head
        for head in range(bank.num_heads):
            left = test.take(close[:, head].nonzero()[:, 0])
            counts[head] += _counted(bank, head, left)
    counted: np.ndarray = counts.cpu().numpy()
    return counted


def mean_losses(bank: Bank, sample: LabelledRows) -> Float[np.ndarray, " heads"]:
    """Return the mean loss of each head over `sample`, each with its own training loss."""
    totals = torch.zeros(bank.num_heads, dtype=torch.float64, device=bank.device)
    losses = [loss_named(head.loss) for head in bank.heads]
    for part, blocks in _blocks(bank, len(sample)):
        features, labels = sample.widened(part), sample.labels[part]
        for heads in blocks:
            logits = _logits(bank, features, heads)
            for column, head in enumerate(range(heads.start, heads.stop)):
                totals[head] += losses[head].value(logits[:, column], labels).double().sum()
    means: np.ndarray = (totals / len(sample)).cpu().numpy()
    return means


def _counted(bank: Bank, head: int, rows: LabelledRows) -> Int[Tensor, " classes"]:
    """Return correct counts of one head by its float32 logits."""
    counts = torch.zeros(1, bank.num_classes, dtype=torch.int64, device=bank.device)
    for part, _ in _blocks(bank, len(rows)):
        labels = rows.labels[part]
        logits = _logits(bank, rows.widened(part), slice(head, head + 1))
        _add(counts, labels, logits.argmax(dim=2) == labels[:, None])
    return counts[0]


def _logits(
    bank: Bank, features: Float[Tensor, "rows dim"], heads: slice
) -> Float[Tensor, "rows heads classes"]:
    shape = (len(features), heads.stop - heads.start, bank.num_classes)
    with products_in("float32"):
        return bank.logits(features, features.new_empty(shape), heads)


def _add(
    counts: Int[Tensor, "heads classes"],
    labels: Int[Tensor, " rows"],
    right: Bool[Tensor, "rows heads"],
) -> None:
    """Add correct counts by label: like bincount, but without waiting for a CUDA device."""
    counts.scatter_add_(1, labels.expand(len(counts), -1), right.T.long())


def _blocks(bank: Bank, total: int) -> Iterator[tuple[slice, list[slice]]]:
    """Yield slices of `total` rows, and into which slices of heads each of them is split."""
    values = CUDA_BLOCK_VALUES if bank.device.type == "cuda" else BLOCK_VALUES
    rows = max(MIN_BLOCK_ROWS, values // (bank.num_heads * bank.num_classes))
    heads = min(bank.num_heads, max(1, values // (rows * bank.num_classes)))
    split = [
        slice(first, min(first + heads, bank.num_heads))
        for first in range(0, bank.num_heads, heads)
    ]
    for start in range(0, total, rows):
        yield slice(start, min(start + rows, total)), split

"""Evaluation of a whole bank: counts of right answers a class, and mean losses.

Features stay as they are stored; a block at a time is widened to float32 and multiplied with
all heads at once.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from clinit.headtrain.bank import Bank
from clinit.headtrain.losses import loss_named

BLOCK_VALUES = 2**19
"""Logits computed at a time: 2 MB stay in a core's cache while they are reduced."""
MIN_BLOCK_ROWS = 256
"""Fewer rows would leave the matrix product short of work; then heads come in turn."""
CUDA_BLOCK_VALUES = 2**28
"""On a CUDA device: 1 GB, so that a few launches cover the whole test set."""


@dataclass(frozen=True, slots=True, eq=False)
class LabelledRows:
    """Rows on the device of the bank, labelled by head row."""

    features: Float[Tensor, "rows dim"]
    """In their stored type."""
    labels: Int[Tensor, " rows"]

    @classmethod
    def on(
        cls,
        device: torch.device,
        features: Float[np.ndarray, "rows dim"],
        labels: Int[np.ndarray, " rows"],
    ) -> LabelledRows:
        """Move features and labels to `device`."""
        return cls(torch.from_numpy(features).to(device), torch.from_numpy(labels).to(device))

    def __len__(self) -> int:
        return len(self.labels)

    def first(self, rows: int) -> LabelledRows:
        """Return the first `rows` rows, without a copy."""
        return LabelledRows(self.features[:rows], self.labels[:rows])


def logit_blocks(
    bank: Bank, rows: LabelledRows
) -> Iterator[tuple[slice, Float[Tensor, "rows heads classes"], Int[Tensor, "rows heads"]]]:
    """Yield heads, their logits and the labels, block by block; each overwrites the last one."""
    values = CUDA_BLOCK_VALUES if bank.device.type == "cuda" else BLOCK_VALUES
    num_rows = max(MIN_BLOCK_ROWS, values // (bank.num_heads * bank.num_classes))
    num_heads = min(bank.num_heads, max(1, values // (num_rows * bank.num_classes)))
    space = bank.weight.new_empty(num_rows * num_heads * bank.num_classes)
    for start in range(0, len(rows), num_rows):
        features = rows.features[start : start + num_rows].float()
        labels = rows.labels[start : start + num_rows]
        for first in range(0, bank.num_heads, num_heads):
            heads = slice(first, min(first + num_heads, bank.num_heads))
            shape = (len(labels), heads.stop - heads.start, bank.num_classes)
            logits = bank.logits(features, space[: math.prod(shape)].view(shape), heads)
            yield heads, logits, labels[:, None].expand(shape[:2])


def count_correct(bank: Bank, test: LabelledRows) -> Int[np.ndarray, "heads classes"]:
    """Count the rows of each class that each head labels right; the first of equal logits wins."""
    classes = bank.num_classes
    counts = torch.zeros(bank.num_heads, classes, dtype=torch.int64, device=bank.device)
    for heads, logits, labels in logit_blocks(bank, test):
        right = logits.argmax(dim=2) == labels
        # A sum of integers by label, like bincount but without waiting for a CUDA device.
        counts[heads].scatter_add_(1, labels.T, right.T.long())
    counted: np.ndarray = counts.cpu().numpy()
    return counted


def mean_losses(bank: Bank, sample: LabelledRows) -> Float[np.ndarray, " heads"]:
    """Return the mean loss of each head over `sample`, each with its own training loss."""
    totals = torch.zeros(bank.num_heads, dtype=torch.float64, device=bank.device)
    losses = [loss_named(head.loss) for head in bank.heads]
    for heads, logits, labels in logit_blocks(bank, sample):
        for column, head in enumerate(range(heads.start, heads.stop)):
            values = losses[head].value(logits[:, column], labels[:, column])
            totals[head] += values.double().sum()
    means: np.ndarray = (totals / len(sample)).cpu().numpy()
    return means

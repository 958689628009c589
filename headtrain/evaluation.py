"""Evaluation of a whole bank: counts of right answers a class, and mean losses.

Features stay as they are stored; a block at a time is widened to float32 and multiplied with
all heads at once.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from clinit.headtrain.bank import Bank
from clinit.headtrain.training import bank_losses

BLOCK_VALUES = 2**20
"""Logits computed at a time: 4 MB stay in a core's cache while they are reduced."""
MIN_BLOCK_ROWS = 256
"""Fewer rows would leave the matrix product short of work."""
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

    def blocks(self, bank: Bank) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield float32 features and labels, in blocks that suit `bank`."""
        values = CUDA_BLOCK_VALUES if bank.device.type == "cuda" else BLOCK_VALUES
        rows = max(MIN_BLOCK_ROWS, values // (bank.num_heads * bank.num_classes))
        for start in range(0, len(self), rows):
            block = slice(start, start + rows)
            yield self.features[block].float(), self.labels[block]


def count_correct(bank: Bank, test: LabelledRows) -> Int[np.ndarray, "heads classes"]:
    """Count the rows of each class that each head labels right; the first of equal logits wins."""
    classes = bank.num_classes
    counts = torch.zeros(bank.num_heads * classes, dtype=torch.int64, device=bank.device)
    offsets = torch.arange(bank.num_heads, device=bank.device) * classes
    for features, labels in test.blocks(bank):
        right = bank.logits(features).argmax(dim=2) == labels[:, None]
        place = (labels[:, None] + offsets)[right]
        counts += torch.bincount(place, minlength=len(counts))
    counted: np.ndarray = counts.view(bank.num_heads, classes).cpu().numpy()
    return counted


def mean_losses(bank: Bank, sample: LabelledRows) -> Float[np.ndarray, " heads"]:
    """Return the mean loss of each head over `sample`, each with its own training loss."""
    totals = torch.zeros(bank.num_heads, dtype=torch.float64, device=bank.device)
    for features, labels in sample.blocks(bank):
        logits = bank.logits(features)
        shared = labels[:, None].expand(logits.shape[:2])
        for heads, loss in bank_losses(bank):
            totals[heads] += loss.value(logits[:, heads], shared[:, heads]).double().sum(0)
    means: np.ndarray = (totals / len(sample)).cpu().numpy()
    return means

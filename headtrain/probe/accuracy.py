"""What heads label right: top-1, top-5, and the mean over classes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Int

from clinit.headtrain.bank.evaluate import count_correct
from clinit.headtrain.bank.heads import Bank
from clinit.headtrain.bank.judge import blocks_of, logits_of
from clinit.headtrain.bank.rows import LabelledRows
from clinit.headtrain.rows import Rows
from clinit.headtrain.study import Training

TOP = 5


@dataclass(frozen=True, slots=True)
class Accuracy:
    """Accuracies in percent; rows of a class that the head does not know count as wrong."""

    rows: int
    top1: float
    top5: float | None
    """None where there are no more than five classes."""
    per_class: float
    """Mean over the classes that have rows."""


def bank_of(heads: Sequence[Rows], device: torch.device) -> Bank:
    """Return heads of the same classes side by side."""
    bank = Bank(heads[0], [Training()] * len(heads), device)
    for index, rows in enumerate(heads):
        bank.write(index, 0, rows)
    return bank


def measure(
    head: Rows, test: LabelledRows, row_of_class: Int[np.ndarray, " classes"]
) -> Accuracy | None:
    """Measure one head; None where there is no row.

    Args:
        head: The head.
        test: Rows, labelled by class.
        row_of_class: The row of the head for each class, -1 where it has none.
    """
    if not len(test):
        return None
    totals = np.bincount(test.labels.cpu().numpy(), minlength=len(row_of_class))
    head_rows = torch.from_numpy(row_of_class).to(test.labels.device)[test.labels]
    known = (head_rows >= 0).nonzero()[:, 0]
    rows = LabelledRows(test.subset(known).features, head_rows[known])
    bank = bank_of([head], test.labels.device)
    correct = count_correct(bank, rows)[0]
    tested = totals > 0
    per_class = np.where(row_of_class >= 0, correct[row_of_class], 0)[tested] / totals[tested]
    return Accuracy(
        rows=len(test),
        top1=100 * int(correct.sum()) / len(test),
        top5=100 * count_in_top(bank, rows, TOP) / len(test) if bank.num_classes > TOP else None,
        per_class=100 * float(per_class.mean()),
    )


def count_in_top(bank: Bank, test: LabelledRows, top: int) -> int:
    """Count the rows whose label is among the `top` largest logits of the first head.

    Of equal logits the first ones are the larger.
    """
    found = torch.zeros((), dtype=torch.int64, device=bank.device)
    column = torch.arange(bank.num_classes, device=bank.device)
    for part, _ in blocks_of(bank, len(test)):
        label = test.labels[part, None]
        logits = logits_of(bank, test.widened(part), slice(0, 1))[:, 0]
        own = logits.gather(1, label)
        before = (logits > own) | ((logits == own) & (column < label))
        found += (before.sum(1) < top).sum()
    return int(found)

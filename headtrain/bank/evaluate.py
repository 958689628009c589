"""Evaluation of a whole bank: correct counts per class, mistakes, and mean losses."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from clinit.headtrain.bank.heads import Bank
from clinit.headtrain.bank.judge import best_rivals, blocks_of, judge, logits_of
from clinit.headtrain.bank.rows import LabelledRows
from clinit.headtrain.losses import loss_named

Mistakes = Int[np.ndarray, "3 _"]
"""Class, number among the rows of its class, and predicted class of each wrongly labelled row."""


@dataclass(frozen=True, slots=True, eq=False)
class Evaluation:
    """What the heads of a bank label right."""

    correct: Int[np.ndarray, "heads classes"]
    correct_in_task: Int[np.ndarray, "heads classes"]
    """Where only the classes that arrived together with that of the row are asked about."""
    mistakes: tuple[Mistakes, ...] | None
    """One per head; None unless asked for."""


def evaluate(
    bank: Bank, test: LabelledRows, ends: Sequence[int], *, list_mistakes: bool = False
) -> Evaluation:
    """Count the rows of each class that each head labels right.

    Args:
        bank: Heads.
        test: Rows, sorted by label.
        ends: Head row after the last class of each task, in order.
        list_mistakes: Whether to list the rows that are labelled wrong.
    """
    judged = judge(bank, test, ends)
    return Evaluation(
        correct=_counts(judged.right, test.labels, bank.num_classes),
        correct_in_task=_counts(judged.right_in_task, test.labels, bank.num_classes),
        mistakes=_mistakes(bank, test, judged.right) if list_mistakes else None,
    )


def count_correct(bank: Bank, test: LabelledRows) -> Int[np.ndarray, "heads classes"]:
    """Count the rows of each class that each head labels right; the first of equal logits wins."""
    return _counts(judge(bank, test).right, test.labels, bank.num_classes)


def mean_losses(bank: Bank, sample: LabelledRows) -> Float[np.ndarray, " heads"]:
    """Return the mean loss of each head over `sample`, each with its own training loss."""
    totals = torch.zeros(bank.num_heads, dtype=torch.float64, device=bank.device)
    losses = [loss_named(head.loss) for head in bank.heads]
    for part, blocks in blocks_of(bank, len(sample)):
        features, labels = sample.widened(part), sample.labels[part]
        for heads in blocks:
            logits = logits_of(bank, features, heads)
            for column, head in enumerate(range(heads.start, heads.stop)):
                totals[head] += losses[head].value(logits[:, column], labels).double().sum()
    means: np.ndarray = (totals / len(sample)).cpu().numpy()
    return means


def _counts(
    right: Bool[Tensor, "rows heads"], labels: Int[Tensor, " rows"], num_classes: int
) -> Int[np.ndarray, "heads classes"]:
    """Count by label: like bincount, but without waiting for a CUDA device."""
    counts = labels.new_zeros(right.shape[1], num_classes)
    counts.scatter_add_(1, labels.expand(len(counts), -1), right.T.long())
    counted: np.ndarray = counts.cpu().numpy()
    return counted


def _mistakes(
    bank: Bank, test: LabelledRows, right: Bool[Tensor, "rows heads"]
) -> tuple[Mistakes, ...]:
    first = torch.searchsorted(test.labels, test.labels)  # of the same class
    number = torch.arange(len(test), device=test.labels.device) - first
    found = []
    for head in range(bank.num_heads):
        wrong = (~right[:, head]).nonzero()[:, 0]
        rivals = best_rivals(bank, head, test, wrong)
        told = torch.stack([test.labels[wrong], number[wrong], rivals])
        found.append(told.to("cpu", torch.int32).numpy())
    return tuple(found)

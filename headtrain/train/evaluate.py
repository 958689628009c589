"""Which test rows each head of a bank labels right, among all classes and among those of a task.

Features stay as they are stored; a block at a time is widened to float32 and multiplied with
all heads at once. What counts are float32 logits, whatever the precision that the bank is trained
in: a lower one only settles what it can, see `clinit.headtrain.train.first_look`.

Evaluation of a whole bank: correct counts per class, mistakes, and mean losses.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from clinit.headtrain.train.first_look import Group, first_look
from clinit.headtrain.train.heads import Bank, products_in
from clinit.headtrain.train.losses import loss_named
from clinit.headtrain.train.rows import LabelledRows

BLOCK_VALUES = 2**19
"""Logits computed at a time: 2 MB stay in a core's cache while they are reduced."""
MIN_BLOCK_ROWS = 256
"""Fewer rows would leave the matrix product short of work; then heads come in turn."""
CUDA_BLOCK_VALUES = 2**28
"""On a CUDA device: 1 GB, so that a few launches cover the whole test set."""


@dataclass(frozen=True, slots=True, eq=False)
class Judgement:
    """Whether each head labels each row right; the first of equal logits wins."""

    right: Bool[Tensor, "rows heads"]
    """Among all classes of the head."""
    right_in_task: Bool[Tensor, "rows heads"]
    """Among the classes that arrived together with that of the row."""


def judge(bank: Bank, test: LabelledRows, ends: Sequence[int] = ()) -> Judgement:
    """Compare the label of each row with its rivals.

    Args:
        bank: Heads.
        test: Rows; sorted by label where there are `ends`.
        ends: Head row after the last class of each task, in order; default: all are one task.
    """
    shape = (len(test), bank.num_heads)
    right, in_task, close = (
        torch.zeros(shape, dtype=torch.bool, device=bank.device) for _ in range(3)
    )
    look = first_look(bank)
    groups = _groups(test.labels, ends, bank.num_classes)
    for part, blocks in blocks_of(bank, len(test)):
        features, labels = test.widened(part), test.labels[part]
        inside = _inside(groups, part)
        for heads in blocks:
            lead = look(features, labels, heads, inside)
            right[part, heads] = lead.overall > lead.doubt
            in_task[part, heads] = lead.in_task > lead.doubt_in_task
            close[part, heads] = lead.is_close
    if close.any():  # one wait for a CUDA device where there is nothing to do, not one per head
        for head in range(bank.num_heads):
            rows = close[:, head].nonzero()[:, 0]
            found = _by_logits(bank, head, test, rows, ends)
            right[rows, head], in_task[rows, head] = found.right[:, 0], found.right_in_task[:, 0]
    return Judgement(right, in_task)


def best_rivals(
    bank: Bank, head: int, test: LabelledRows, rows: Int[Tensor, " rows"]
) -> Int[Tensor, " rows"]:
    """Return the class that one head prefers to all others but the label, for each of `rows`."""
    found = torch.empty(len(rows), dtype=torch.int64, device=bank.device)
    for part, _ in blocks_of(bank, len(rows)):
        block = test.take(rows[part])
        logits = logits_of(bank, block.features.float(), slice(head, head + 1))[:, 0]
        logits.scatter_(1, block.labels[:, None], -torch.inf)
        found[part] = logits.argmax(dim=1)
    return found


def logits_of(
    bank: Bank, features: Float[Tensor, "rows dim"], heads: slice
) -> Float[Tensor, "rows heads classes"]:
    """Return float32 logits of some heads."""
    shape = (len(features), heads.stop - heads.start, bank.num_classes)
    with products_in("float32"):
        return bank.logits(features, features.new_empty(shape), heads)


def blocks_of(bank: Bank, total: int) -> Iterator[tuple[slice, list[slice]]]:
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


def _by_logits(
    bank: Bank, head: int, test: LabelledRows, rows: Int[Tensor, " rows"], ends: Sequence[int]
) -> Judgement:
    """Judge rows, ascending, by the float32 logits of one head."""
    right, in_task = (
        torch.zeros(len(rows), 1, dtype=torch.bool, device=bank.device) for _ in range(2)
    )
    groups = _groups(test.labels[rows], ends, bank.num_classes)
    for part, _ in blocks_of(bank, len(rows)):
        block = test.take(rows[part])
        labels = block.labels
        logits = logits_of(bank, block.features.float(), slice(head, head + 1))
        right[part] = logits.argmax(dim=2) == labels[:, None]
        for inside, classes in _inside(groups, part):
            chosen = logits[inside, :, classes].argmax(dim=2) + classes.start
            in_task[part][inside] = chosen == labels[inside, None]
    return Judgement(right, in_task)


def _groups(labels: Int[Tensor, " rows"], ends: Sequence[int], num_classes: int) -> list[Group]:
    """Return the rows and the classes of each task; all of them without `ends`."""
    if not ends:
        return [(slice(0, len(labels)), slice(0, num_classes))]
    bounds = torch.tensor(ends, device=labels.device)
    last = torch.searchsorted(labels, bounds).tolist()
    return [
        (slice(*between), slice(*classes))
        for between, classes in zip(pairwise((0, *last)), pairwise((0, *ends)), strict=True)
        if between[0] < between[1]
    ]


def _inside(groups: Sequence[Group], part: slice) -> list[Group]:
    """Return the groups of the rows of a part, counted from its first one."""
    cut = [
        (max(rows.start, part.start), min(rows.stop, part.stop), classes)
        for rows, classes in groups
    ]
    return [
        (slice(first - part.start, last - part.start), classes)
        for first, last, classes in cut
        if first < last
    ]


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

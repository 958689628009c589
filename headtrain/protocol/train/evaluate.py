"""Correct answers of the heads of a bank, in float32 whatever the precision of the training.

Features stay in their stored dtype. One block at a time is widened to float32 and multiplied with
all heads. Of equal logits, the first wins.

A CUDA device multiplies features in its memory in TF32 first, and again in float32 the rows whose
answer may differ. For features h, weights w and bias b of one class, the difference of both logits
is the sum of three parts, where n is the width and |.| the Euclidean norm:

* Operands are rounded to TF32 before the product, so that the device's own rounding (to nearest,
  or not) changes nothing: |wh - w'h'| <= |w - w'| |h| + |w'| |h - h'|. The weights' part is
  measured. The features' part is at most 2^-11 |w'| |h|, and zero for float16 and bfloat16.
* Tensor cores add k >= 4 exact products at a time, in float32, and truncate each of k + 2 numbers
  at 2^-23 of the largest (Fasi et al., "Numerical behavior of NVIDIA tensor cores", PeerJ Computer
  Science 2021), which is at most |(w, b)| |(h, 1)|.
* Sums in float32 err by 2^-24 of this for each of n + 1 additions.

The last two are below (n + 16) 2^-22 |(w, b)| |(h, 1)|. An answer is certain if the logit of the
label is farther from the largest other logit than the bounds of its class and of any other class.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from copy import copy
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from clinit.headtrain.heads.array import slices
from clinit.headtrain.heads.losses import loss_named
from clinit.headtrain.protocol.train.heads import Bank, BankLogits, LabelledRows, products_in

BLOCK_VALUES = 2**19
"""Logits computed at a time: 2 MB stay in a core's cache while they are reduced."""
MIN_BLOCK_ROWS = 256
"""Fewer rows would make the matrix product inefficient; the heads are divided instead."""
CUDA_BLOCK_VALUES = 2**28
"""Logits at a time on a CUDA device: 1 GB, so that a few launches cover the whole test set."""
BOUND_UNIT = 2.0**-22
"""Unit of the bounds of errors: they overflow, and leave nothing certain, before a logit does."""

Mistakes = Int[np.ndarray, "3 _"]
"""Class, number among the rows of its class, and predicted class of each wrongly labelled row."""
Group = tuple[slice, slice]
"""Rows of one task, and the classes of this task."""


class BankEvaluation(NamedTuple):
    """Numbers of correct answers of the heads of a bank."""

    correct: Int[np.ndarray, "heads classes"]
    correct_in_task: Int[np.ndarray, "heads classes"]
    """Correct answers if a head chooses only among the classes of the row's task."""
    mistakes: tuple[Mistakes, ...] = ()
    """One per head; empty if not requested."""


def evaluate(
    bank: Bank, test: LabelledRows, ends: Sequence[int] = (), *, list_mistakes: bool = False
) -> BankEvaluation:
    """Count the rows of each class that each head labels right.

    Args:
        bank: Heads.
        test: Rows; with `ends` or `list_mistakes`, they must be sorted by label.
        ends: Head row after the last class of each task, in order; default: a single task.
        list_mistakes: Whether to list the rows that are labelled wrong.
    """
    shape = (len(test), bank.num_heads)
    right, in_task, close = (
        torch.zeros(shape, dtype=torch.bool, device=bank.device) for _ in range(3)
    )
    groups = _groups(test.labels, ends, bank.num_classes)
    spans = test.labels.new_empty(2, len(test))  # first class of the task, and the next task's
    for rows, classes in groups:
        spans[0, rows].fill_(classes.start)
        spans[1, rows].fill_(classes.stop)
    space = bank.weight.new_empty(0)
    in_tf32 = bank.has_tf32 and test.is_resident  # at hand for a second look
    if in_tf32:
        rounded, bounds = _rounded(bank, test.features.dtype)
    for part, blocks in blocks_of(bank, len(test)):
        features, labels = test.widened(part), test.labels[part]
        inside = [*_inside(groups, part)]
        for heads in blocks:
            if in_tf32:
                logits = logits_of(rounded, _to_tf32(features), heads, space, "tf32")
            else:
                logits = logits_of(bank, features, heads, space)
            own, rival, rival_in_task = compared(logits, labels, inside)
            right[part, heads], in_task[part, heads] = own > rival, own > rival_in_task
            if in_tf32:
                length = features.norm(dim=1).hypot(features.new_ones(()))[:, None]
                bound = length * (bounds[heads].T[labels] + bounds[heads].amax(1)) * BOUND_UNIT
                gap = torch.minimum((own - rival).abs(), (own - rival_in_task).abs())
                close[part, heads] = ~(gap > bound)  # so is NaN
            elif (equal := (own == rival) | (own == rival_in_task)).any():
                row, head = equal.nonzero(as_tuple=True)
                tied, label = logits[row, head], labels[row, None]
                tied.scatter_(1, label, own[row, head, None])
                found = _answers(tied, label, spans[:, part][:, row])
                right[part, heads][row, head], in_task[part, heads][row, head] = found
    if in_tf32:
        for number, near in enumerate(_listed(close)):
            for part, _ in blocks_of(bank, len(near)):
                row = near[part]
                again = test.take(row)
                logits = logits_of(bank, again.features.float(), slice(number, number + 1))[:, 0]
                found = _answers(logits, again.labels[:, None], spans[:, row])
                right[:, number][row], in_task[:, number][row] = found
    return BankEvaluation(
        correct=_counts(right, test.labels, bank.num_classes),
        correct_in_task=_counts(in_task, test.labels, bank.num_classes),
        mistakes=tuple(_mistakes(bank, test, right)) if list_mistakes else (),
    )


def mean_losses(
    bank: Bank, sample: LabelledRows, weights: Float[Tensor, " rows"] | None = None
) -> Float[np.ndarray, " heads"]:
    """Return the mean loss of each head over `sample`, each with its own training loss.

    `weights` are the weights of the rows and add up to one; default: equal weights.
    """
    totals = torch.zeros(bank.num_heads, dtype=torch.float64, device=bank.device)
    losses = [loss_named(head.loss) for head in bank.heads]
    for part, blocks in blocks_of(bank, len(sample)):
        features, labels = sample.widened(part), sample.labels[part]
        for heads in blocks:
            logits = logits_of(bank, features, heads)
            for column, head in enumerate(range(heads.start, heads.stop)):
                each = losses[head].value(logits[:, column], labels).double()
                totals[head] += each.sum() if weights is None else each @ weights[part]
    return np.asarray((totals / (len(sample) if weights is None else 1)).cpu().numpy())


def logits_of(
    bank: Bank,
    features: Float[Tensor, "rows dim"],
    heads: slice,
    space: Tensor | None = None,
    precision: str = "float32",
) -> BankLogits:
    """Return float32 logits of some heads, in the memory of `space` if it is given."""
    shape = (len(features), heads.stop - heads.start, bank.num_classes)
    out = features.new_empty(shape) if space is None else space.resize_(shape)
    with products_in(precision):
        return bank.logits(features, out, heads)


def blocks_of(bank: Bank, total: int) -> Iterator[tuple[slice, list[slice]]]:
    """Yield slices of `total` rows, each with the slices of heads to compute in turn."""
    values = CUDA_BLOCK_VALUES if bank.device.type == "cuda" else BLOCK_VALUES
    rows = max(MIN_BLOCK_ROWS, values // bank.row_values)
    heads = min(bank.num_heads, max(1, values // (rows * bank.num_classes)))
    split = [*slices(bank.num_heads, heads)]
    for part in slices(total, rows):
        yield part, split


def compared(
    logits: BankLogits, labels: Int[Tensor, " rows"], groups: Sequence[Group]
) -> tuple[Float[Tensor, "rows heads"], Float[Tensor, "rows heads"], Float[Tensor, "rows heads"]]:
    """Return the logit of the label, the largest other logit, and the largest other in its task.

    In `logits`, the logit of the label is overwritten. Each logit is read once, which is several
    times as fast as `argmax`.
    """
    index = labels[:, None, None].expand(*logits.shape[:2], 1)
    own = logits.gather(2, index)[..., 0]
    logits.scatter_(2, index, -torch.inf)
    rival, in_task = torch.empty_like(own), torch.empty_like(own)
    for rows, classes in groups:
        inside = logits[rows, :, classes].amax(2)
        in_task[rows] = inside
        for others in (slice(0, classes.start), slice(classes.stop, None)):
            if len(range(*others.indices(logits.shape[2]))):
                inside = torch.maximum(inside, logits[rows, :, others].amax(2))
        rival[rows] = inside
    return own, rival, in_task


def _rounded(bank: Bank, features: torch.dtype) -> tuple[Bank, Float[Tensor, "heads classes"]]:
    """Round weights to TF32, and bound the errors of each class for features of length 1.

    The bounds have the unit `BOUND_UNIT`, 2 % for their own rounding, and a part for squares and
    products too small for float32.
    """
    rounded = copy(bank)
    rounded.weight = _to_tf32(bank.weight)
    lost = (bank.weight - rounded.weight).norm(dim=2) / BOUND_UNIT
    of_features = 0 if features in (torch.float16, torch.bfloat16) else 2**-11 / BOUND_UNIT
    length = bank.weight.norm(dim=2).hypot(bank.bias)
    return rounded, 1.02 * (lost + (of_features + bank.dim + 16) * length) + 2**-30


def _to_tf32(values: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    """Round to the nearest numbers of 11 significant bits; NaN may become another value."""
    return ((values.view(torch.int32) + 0x1000) & ~0x1FFF).view(torch.float32)


def _listed(close: Bool[Tensor, "rows heads"]) -> tuple[Int[Tensor, " _"], ...]:
    """List the rows of each head, which waits for the device once."""
    counts = close.sum(0).tolist()
    of_heads: tuple[Tensor, ...] = close.T.nonzero_static(size=sum(counts))[:, 1].split(counts)
    return of_heads


def _answers(
    logits: Float[Tensor, "rows classes"], label: Int[Tensor, "rows 1"], span: Int[Tensor, "2 rows"]
) -> tuple[Bool[Tensor, " rows"], Bool[Tensor, " rows"]]:
    """Return whether each label wins among all classes, and among those of its span."""
    column, own = torch.arange(logits.shape[1], device=logits.device), logits.gather(1, label)
    wins = torch.where(column < label, own > logits, own >= logits)  # the first of equals
    first, stop = span[..., None]
    return wins.all(1), (wins | (column < first) | (column >= stop)).all(1)


def _groups(labels: Int[Tensor, " rows"], ends: Sequence[int], num_classes: int) -> list[Group]:
    """Return the rows and the classes of each task; without `ends`, of one task."""
    if not ends:
        return [(slice(0, len(labels)), slice(0, num_classes))]
    last = torch.searchsorted(labels, torch.tensor(ends, device=labels.device)).tolist()
    tasks = zip(pairwise((0, *last)), pairwise((0, *ends)), strict=True)
    return [(slice(*rows), slice(*classes)) for rows, classes in tasks if rows[0] < rows[1]]


def _inside(groups: Sequence[Group], part: slice) -> Iterator[Group]:
    """Yield the groups within a part of the rows, with rows counted from the start of the part."""
    for rows, classes in groups:
        first, last = max(rows.start, part.start), min(rows.stop, part.stop)
        if first < last:
            yield slice(first - part.start, last - part.start), classes


def _counts(
    right: Bool[Tensor, "rows heads"], labels: Int[Tensor, " rows"], num_classes: int
) -> Int[np.ndarray, "heads classes"]:
    """Count by label: like bincount, but without waiting for a CUDA device."""
    counts = labels.new_zeros(right.shape[1], num_classes)
    counts.scatter_add_(1, labels.expand(len(counts), -1), right.T.long())
    return np.asarray(counts.cpu().numpy())


def _mistakes(
    bank: Bank, test: LabelledRows, right: Bool[Tensor, "rows heads"]
) -> Iterator[Mistakes]:
    first = torch.searchsorted(test.labels, test.labels)  # of the same class
    number = torch.arange(len(test), device=test.labels.device) - first
    for head in range(bank.num_heads):
        wrong = (~right[:, head]).nonzero()[:, 0]
        rivals = torch.empty_like(wrong)  # the largest logits besides the labels
        for part, _ in blocks_of(bank, len(wrong)):
            block = test.take(wrong[part])
            logits = logits_of(bank, block.features.float(), slice(head, head + 1))[:, 0]
            logits.scatter_(1, block.labels[:, None], -torch.inf)
            rivals[part] = logits.argmax(dim=1)
        columns = torch.stack([test.labels[wrong], number[wrong], rivals])
        yield columns.to("cpu", torch.int32).numpy()

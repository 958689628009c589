"""Correct answers of the heads of a bank, in float32 whatever the precision of the training.

Features stay in their stored dtype. One block at a time is widened to float32 and multiplied with
all heads. Of equal logits, the first wins.

Where a CUDA device multiplies faster in TF32, it does so first. TF32 keeps 10 bits after the binary
point of h and w and cuts off the others, so that each product h_i w_i errs by at most 2^-9 of
itself, and a logit by 2^-9 |h| |w| (Cauchy-Schwarz); a sum in float32 adds d 2^-23 |h| |w| at most,
and the bias a rounding of the logit. Answers whose margin could be made of these errors of two
logits are computed once more in float32, so that all counts are those of float32.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.linalg import vector_norm

from clinit.headtrain.heads.array import slices
from clinit.headtrain.heads.losses import loss_named
from clinit.headtrain.protocol.train.heads import Bank, BankLogits, LabelledRows, products_in

TF32 = 2**-9
"""Relative error of a product of two numbers in TF32."""
BLOCK_VALUES = 2**19
"""Logits computed at a time: 2 MB stay in a core's cache while they are reduced."""
MIN_BLOCK_ROWS = 256
"""Fewer rows would make the matrix product inefficient; the heads are divided instead."""
CUDA_BLOCK_VALUES = 2**28
"""Logits at a time on a CUDA device: 1 GB, so that a few launches cover the whole test set."""

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
    found = [torch.zeros(shape, dtype=torch.bool, device=bank.device) for _ in range(3)]
    right, in_task, close = found
    is_fast = bank.has_tf32 and test.is_resident
    _judge(bank, test, ends, found if is_fast else found[:2])
    if is_fast:
        rows_of_heads = close.T.nonzero()[:, 1].split(close.sum(0).tolist())
        for index, rows in enumerate(rows_of_heads):
            again = [each.new_zeros(len(rows), 1) for each in found[:2]]
            _judge(bank, test.take(rows), ends, again, index)
            right[rows, index], in_task[rows, index] = (each[:, 0] for each in again)
    return BankEvaluation(
        correct=_counts(right, test.labels, bank.num_classes),
        correct_in_task=_counts(in_task, test.labels, bank.num_classes),
        mistakes=_mistakes(bank, test, right) if list_mistakes else (),
    )


def _judge(
    bank: Bank,
    test: LabelledRows,
    ends: Sequence[int],
    found: Sequence[Bool[Tensor, "rows heads"]],
    head: int | None = None,
) -> None:
    """Write which answers are right, of all classes and of those of the task.

    With a third matrix of `found`, products are in TF32, and it gets the answers that are too close
    to call. `head` is the only head that answers; default: all.
    """
    right, in_task, *close = found
    groups = _groups(test.labels, ends, bank.num_classes)
    space = bank.weight.new_empty(0)
    lengths = vector_norm(bank.weight, dim=2).amax(1) if close else space
    for part, blocks in blocks_of(bank, len(test)):
        features, labels = test.widened(part), test.labels[part]
        inside = [*_inside(groups, part)]
        for heads in blocks if head is None else [slice(head, head + 1)]:
            logits = logits_of(bank, features, heads, space, "tf32" if close else "float32")
            own, rival, rival_in_task = compared(logits, labels, inside)
            place = part, heads if head is None else slice(0, 1)
            right[place], in_task[place] = own > rival, own > rival_in_task
            if close:
                margin = torch.minimum((own - rival).abs(), (own - rival_in_task).abs())
                size = vector_norm(features, dim=1)[:, None] * lengths[heads]
                error = 2 * (TF32 + bank.dim * 2**-22) * size + 2**-21 * own.abs()
                close[0][place] = ~(margin > error)  # what is not a number is close
                continue
            equal = (own == rival) | (own == rival_in_task)
            if equal.any():  # another class ties with the label: the first of equals is the answer
                label = labels[:, None].expand(own.shape)
                logits.scatter_(2, label[..., None], own[..., None])
                for rows, classes in inside:
                    which = equal[rows]
                    tied, of_tied = logits[rows][which], label[rows][which]
                    right[place][rows][which] = tied.argmax(1) == of_tied
                    first_of = tied[:, classes].argmax(1) + classes.start
                    in_task[place][rows][which] = first_of == of_tied


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
    """Return logits of some heads, in the memory of `space` if it is given."""
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
) -> tuple[Mistakes, ...]:
    first = torch.searchsorted(test.labels, test.labels)  # of the same class
    number = torch.arange(len(test), device=test.labels.device) - first
    found = []
    for head in range(bank.num_heads):
        wrong = (~right[:, head]).nonzero()[:, 0]
        rivals = torch.empty_like(wrong)  # the largest logits besides the labels
        for part, _ in blocks_of(bank, len(wrong)):
            block = test.take(wrong[part])
            logits = logits_of(bank, block.features.float(), slice(head, head + 1))[:, 0]
            logits.scatter_(1, block.labels[:, None], -torch.inf)
            rivals[part] = logits.argmax(dim=1)
        columns = torch.stack([test.labels[wrong], number[wrong], rivals])
        found.append(columns.to("cpu", torch.int32).numpy())
    return tuple(found)

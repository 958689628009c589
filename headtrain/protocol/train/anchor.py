"""Anchors: penalties that hold a head near its start while it learns a task.

With W_0, b_0 all rows of the head when the training of the task begins, and s the strength, this
penalty is added to the loss of a batch:

    moments    s/2 Ave |(W - W_0) h + b - b_0|^2

It averages over features h of earlier classes: it is the mean squared change of all logits. With
z = (h, 1), the change (D, d) = (W - W_0, b - b_0) and Ave z z^T approximated by P P^T + rho I, its
gradient is

    s [(D, d) P P^T + rho (D, d)].

It takes the same time for any number of averaged rows. P contains the sixteenth of the eigenvectors
with the largest eigenvalues; rho is the mean of all other eigenvalues. With all eigenvectors, a
step would take half as long again and lead to the same accuracy.

Source: It is the penalty of a Kronecker-factored Laplace approximation (H. Ritter, A. Botev,
D. Barber, "Online structured Laplace approximations for overcoming catastrophic forgetting",
NeurIPS 2018) for one layer, with the identity for the factor of its outputs.

The strength can be chosen by the loss on rows that are set aside. A fifth of the rows of each new
class (never its last row) and a fifth of the stored old rows are set aside, in whole groups of rows
that repeat each other. For each of `STRENGTHS`, the head starts from the remaining rows and is
trained on them, always on the same batches. The strength with the least training loss on the set-
aside rows, the *judges*, is used to train the head on all rows. In this loss, each class seen
counts the same; classes with set-aside rows represent old classes without any. If no old row is
stored, rows drawn from the statistics of the old classes are the judges of old classes. No test row
is used.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from clinit.headtrain.heads.groups import held_out_rows
from clinit.headtrain.heads.seeds import Draw, generator
from clinit.headtrain.protocol.stream.buffer import TaskRows
from clinit.headtrain.protocol.train.heads import LabelledRows
from clinit.headtrain.protocol.train.past import OldClasses, Past


@dataclass(frozen=True, slots=True)
class Anchor:
    """The penalty that holds one head, and its strength."""

    strength: float
    """s, >= 0."""
    old: OldClasses
    """Classes whose features it averages over."""


class Hold:
    """Adds the gradient of an anchor to the gradients of heads that share it."""

    def __init__(
        self,
        anchor: Anchor,
        head: tuple[Float[Tensor, "rows dim"], Float[Tensor, " rows"]],
        gradient: tuple[Float[Tensor, "rows dim"], Float[Tensor, " rows"]],
    ) -> None:
        """Copy the present rows as W_0, b_0.

        Args:
            anchor: The penalty.
            head: Weight and bias of all heads, the rows of one head after another.
            gradient: Gradients of weight and bias, to which `pull` adds.
        """
        weight, bias = head
        self._strength, self._head, self._gradient = anchor.strength, head, gradient
        self._start = weight.clone(), bias.clone()
        self._change = weight.new_empty(len(bias), weight.shape[1] + 1)
        """D and, in the last column, d."""
        leading, rest = anchor.old.leading
        self._leading = torch.from_numpy(leading).to(weight)
        self._along = weight.new_empty(len(bias), leading.shape[1])
        self._strength_of_rest = anchor.strength * rest

    def pull(self) -> None:
        """Add the gradient of the penalty, without waiting for the device."""
        weight, bias = self._change[:, :-1], self._change[:, -1]
        of_weight, of_bias = self._gradient
        torch.sub(self._head[0], self._start[0], out=weight)
        torch.sub(self._head[1], self._start[1], out=bias)
        of_weight.add_(weight, alpha=self._strength_of_rest)
        of_bias.add_(bias, alpha=self._strength_of_rest)
        along = torch.mm(self._change, self._leading, out=self._along)
        of_weight.addmm_(along, self._leading[:-1].t(), alpha=self._strength)
        of_bias.addmv_(along, self._leading[-1], alpha=self._strength)


STRENGTHS = (0.0, 0.01, 0.1, 1.0, 10.0)
ASIDE = 0.2


def set_aside(data: TaskRows, past: Past, seed: int) -> Bool[np.ndarray, " rows"]:
    """Mark the stored rows of a task that are set aside as judges."""
    num_drawn, is_old = int((data.rows < 0).sum()), np.arange(len(data.labels)) < data.num_old
    groups = past.groups(data)
    groups = np.arange(len(is_old)) if groups is None else groups
    classes, random = np.where(is_old, -1, data.labels), generator(seed, Draw.ANCHOR, data.number)
    aside = held_out_rows(classes[num_drawn:], groups[num_drawn:], ASIDE, random)
    return np.concatenate([np.zeros(num_drawn, dtype=bool), aside])


def judges(
    data: TaskRows, rows: LabelledRows, aside: Bool[np.ndarray, " rows"], past: Past, seed: int
) -> LabelledRows:
    """Return the judges: old rows first.

    Args:
        data: The rows of a task.
        rows: Features and labels of the stored rows of the task.
        aside: Which rows of the task are set aside.
        past: Draws old rows if no old row is set aside.
        seed: Seed of the stream.
    """
    num_drawn = len(aside) - len(rows)
    stored = rows.take(torch.from_numpy(np.flatnonzero(aside[num_drawn:])))
    old = None if aside[: data.num_old].any() else past.before(data.number)
    if old is None:
        return stored
    (random,) = generator(seed, Draw.ANCHOR, data.number).spawn(1)
    drawn = LabelledRows.on(stored.labels.device, *old.draw(random))
    features = torch.cat([drawn.features.to(stored.features.device), stored.features.float()])
    return LabelledRows(features, torch.cat([drawn.labels, stored.labels]))


def class_weights(
    labels: Int[np.ndarray, " rows"], start: int, stop: int
) -> Float[np.ndarray, " rows"]:
    """Return weights of rows with which all classes seen count the same; the weights add up to 1.

    Classes in [0, start) that have rows share the weight of all classes in [0, start); likewise for
    [start, stop).
    """
    counts = np.bincount(labels, minlength=stop)
    is_old = np.arange(stop) < start
    present = [np.maximum(1, (counts > 0)[side].sum()) for side in (is_old, ~is_old)]
    per_class = np.where(is_old, start / present[0], (stop - start) / present[1]) / stop
    return np.asarray((per_class / np.maximum(counts, 1))[labels])

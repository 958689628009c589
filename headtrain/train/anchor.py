"""Anchors: penalties that hold a head near its start while it learns a task.

With W_0, b_0 all rows of the head when the training of the task begins, and s the strength, one of
these penalties is added to the loss of a batch:

    l2         s/2 (|W - W_0|^2 + |b - b_0|^2)
    moments    s/2 Ave |(W - W_0) h + b - b_0|^2

`moments` averages over features h of earlier classes: it is the mean squared change of all logits.
With z = (h, 1), the change (D, d) = (W - W_0, b - b_0) and Ave z z^T approximated by
P P^T + rho I, the gradient of `moments` is

    s [(D, d) P P^T + rho (D, d)].

It takes the same time for any number of averaged rows. P contains the sixteenth of the eigenvectors
with the largest eigenvalues; rho is the mean of all other eigenvalues. With all eigenvectors, a
step would take half as long again and lead to the same accuracy.

Source: X. Li, Y. Grandvalet, F. Davoine, "Explicit inductive bias for transfer learning with
convolutional networks", ICML 2018 (L2-SP; there new rows are held at 0, here at their start).
`moments` is the penalty of a Kronecker-factored Laplace approximation (H. Ritter, A. Botev,
D. Barber, "Online structured Laplace approximations for overcoming catastrophic forgetting",
NeurIPS 2018) for one layer, with the identity for the factor of its outputs.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from clinit.headtrain.train.old_classes import OldClasses


@dataclass(frozen=True, slots=True)
class Anchor:
    """The penalty that holds one head, and its strength."""

    strength: float
    """s, >= 0."""
    old: OldClasses | None = None
    """Classes whose features `moments` averages over; None: `l2`."""


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
        (weight, bias), old = head, anchor.old
        self._strength, self._head, self._gradient = anchor.strength, head, gradient
        self._leading, rest = None, 1.0
        self._start = weight.clone(), bias.clone()
        self._change = weight.new_empty(len(bias), weight.shape[1] + 1)
        """D and, in the last column, d."""
        if old is not None:
            leading, rest = old.leading
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
        if self._leading is not None:
            along = torch.mm(self._change, self._leading, out=self._along)
            of_weight.addmm_(along, self._leading[:-1].t(), alpha=self._strength)
            of_bias.addmv_(along, self._leading[-1], alpha=self._strength)

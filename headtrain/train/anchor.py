"""Anchors: penalties that hold a head near its start while it learns a task.

With W_0, b_0 the head when the training of the task begins, all rows included, and s the strength,
the loss of a batch is joined by

    l2         s/2 (|W - W_0|^2 + |b - b_0|^2)
    moments    s/2 Ave |(W - W_0) h + b - b_0|^2

with the average of `moments` over features h of earlier classes: the mean squared change of all
logits. With D = W - W_0, d = b - b_0, M = Ave h h^T and m = Ave h its gradient is

    s (D M + d m^T),    s (D m + d),

one product per step, whatever the number of rows behind M. Without a bias it is s D M.

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

from clinit.headtrain.statistics.old_classes import OldClasses


@dataclass(frozen=True, slots=True)
class Anchor:
    """What holds one head, and how strongly."""

    strength: float
    """s, >= 0."""
    old: OldClasses | None = None
    """Whose features `moments` averages over; None: `l2`."""


class Hold:
    """Adds the gradient of an anchor to the gradients of heads that share it."""

    def __init__(
        self,
        anchor: Anchor,
        head: tuple[Float[Tensor, "rows dim"], Float[Tensor, " rows"]],
        gradient: tuple[Float[Tensor, "rows dim"], Float[Tensor, " rows"]],
    ) -> None:
        """Hold heads where they are now.

        Args:
            anchor: What holds them.
            head: Weight and bias, rows of one head after rows of the other.
            gradient: Theirs, which is added to.
        """
        self._anchor, self._head, self._gradient = anchor, head, gradient
        self._start = [each.clone() for each in head]
        self._change = [torch.empty_like(each) for each in head]
        old = anchor.old
        self._moments = old and [
            torch.from_numpy(each).to(head[0]) for each in (old.second, old.mean)
        ]

    def pull(self) -> None:
        """Add the gradient of the penalty; nothing waits for the device."""
        for now, start, change in zip(self._head, self._start, self._change, strict=True):
            torch.sub(now, start, out=change)
        of_weight, of_bias = self._gradient
        weight, bias = self._change
        strength = self._anchor.strength
        of_bias.add_(bias, alpha=strength)
        if self._moments is None:
            of_weight.add_(weight, alpha=strength)
            return
        second, mean = self._moments
        torch.addmm(of_weight, weight, second, alpha=strength, out=of_weight)
        of_weight.addr_(bias, mean, alpha=strength)
        of_bias.addmv_(weight, mean, alpha=strength)

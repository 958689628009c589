"""Rescaled squared error: loss = (1 / C) [kappa (u_y - beta)^2 + sum_{j != y} u_j^2].

Source: L. Hui, M. Belkin, "Evaluation of neural architectures trained with square loss vs
cross-entropy in classification tasks", ICLR 2021; kappa = 15 and beta = 30 for many classes.
Gradient: 2 u_j / C, and 2 kappa (u_y - beta) / C for the label.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from clinit.headtrain.losses.interface import FixedPart, LocalTerms, indicator, pick, spread


@dataclass(frozen=True, slots=True)
class SquaredError:
    """Squared error with a weight kappa and a target beta for the true class."""

    kappa: float = 15.0
    beta: float = 30.0

    def __post_init__(self) -> None:
        if not (self.kappa > 0 and self.beta > 0):
            raise ValueError(f"kappa is {self.kappa}, beta {self.beta}: expected both > 0")

    def value(
        self, logits: Float[Tensor, "*bank rows classes"], labels: Int[Tensor, "*#bank rows"]
    ) -> Float[Tensor, "*bank rows"]:
        """Return the loss of each sample."""
        picked = logits.gather(-1, spread(labels, logits)).squeeze(-1)
        return (logits.square().sum(-1) + self._excess(picked)) / logits.shape[-1]

    def value_and_gradient(
        self,
        logits: Float[Tensor, "*bank rows classes"],
        labels: Int[Tensor, "*#bank rows"],
        out: Float[Tensor, "*bank rows classes"] | None = None,
    ) -> tuple[Float[Tensor, "*bank rows"], Float[Tensor, "*bank rows classes"]]:
        """Return the loss of each sample and its gradient with respect to its logits."""
        classes = logits.shape[-1]
        index = spread(labels, logits)
        picked = logits.gather(-1, index)
        value = (logits.square().sum(-1) + self._excess(picked.squeeze(-1))) / classes
        gradient = torch.mul(logits, 2 / classes, out=out)
        return value, gradient.scatter_(-1, index, 2 * self.kappa * (picked - self.beta) / classes)

    def fixed_part(
        self,
        logits: Float[Tensor, "rows fixed"],
        target: Int[Tensor, " rows"],
        num_classes: int,
    ) -> FixedPart:
        """Reduce the fixed logits to their part of the sum."""
        excess = self._excess(pick(logits, target)) * (target >= 0)
        constant = (logits.square().sum(1) + excess) / num_classes
        return FixedPart(log_sum=torch.full_like(constant, -torch.inf), constant=constant)

    def local_terms(
        self,
        logits: Float[Tensor, "rows new"],
        target: Int[Tensor, " rows"],
        fixed: FixedPart,
        num_classes: int,
    ) -> LocalTerms:
        """Expand in the new logits: the Hessian is diagonal, and constant."""
        is_target = indicator(logits, target)
        excess = self._excess(pick(logits, target)) * (target >= 0)
        diagonal = (2 / num_classes) * (1 + (self.kappa - 1) * is_target)
        return LocalTerms(
            value=fixed.constant + (logits.square().sum(1) + excess) / num_classes,
            gradient=diagonal * (logits - self.beta * is_target),
            diagonal=diagonal,
            outer=torch.zeros_like(logits),
        )

    def _excess(self, picked: Tensor) -> Tensor:
        """Return what the label's term exceeds a plain square by."""
        return self.kappa * (picked - self.beta).square() - picked.square()

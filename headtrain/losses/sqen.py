"""Squentropy: loss = log sum_j exp(u_j) - u_y + sum_{j != y} u_j^2 / (C - 1).

Source: L. Hui, M. Belkin, S. Wright, "Cut your losses with squentropy", ICML 2023.
Gradient: softmax(u)_j - y_j + 2 u_j / (C - 1) for j != y, and softmax(u)_y - 1 for the label.
"""

from __future__ import annotations

from dataclasses import dataclass

from jaxtyping import Float, Int
from torch import Tensor

from clinit.headtrain.losses.ce import CrossEntropy
from clinit.headtrain.losses.interface import FixedPart, LocalTerms, indicator, pick, spread


@dataclass(frozen=True, slots=True)
class Squentropy:
    """Cross entropy plus the mean square of the logits of the wrong classes."""

    def value(
        self, logits: Float[Tensor, "*bank rows classes"], labels: Int[Tensor, "*#bank rows"]
    ) -> Float[Tensor, "*bank rows"]:
        """Return the loss of each sample."""
        picked = logits.gather(-1, spread(labels, logits)).squeeze(-1)
        squares = (logits.square().sum(-1) - picked.square()) / _wrong(logits.shape[-1])
        return logits.logsumexp(-1) - picked + squares

    def value_and_gradient(
        self,
        logits: Float[Tensor, "*bank rows classes"],
        labels: Int[Tensor, "*#bank rows"],
        out: Float[Tensor, "*bank rows classes"] | None = None,
    ) -> tuple[Float[Tensor, "*bank rows"], Float[Tensor, "*bank rows classes"]]:
        """Return the loss of each sample and its gradient with respect to its logits."""
        wrong = _wrong(logits.shape[-1])
        index = spread(labels, logits)
        picked = logits.gather(-1, index)
        value, gradient = CrossEntropy().value_and_gradient(logits, labels, out)
        value = value + (logits.square().sum(-1) - picked.squeeze(-1).square()) / wrong
        gradient.add_(logits, alpha=2 / wrong)
        return value, gradient.scatter_add_(-1, index, picked * (-2 / wrong))

    def fixed_part(
        self,
        logits: Float[Tensor, "rows fixed"],
        target: Int[Tensor, " rows"],
        num_classes: int,
    ) -> FixedPart:
        """Reduce the fixed logits to their log-sum and their part of the squares."""
        entropy = CrossEntropy().fixed_part(logits, target, num_classes)
        squares = logits.square().sum(1) - pick(logits, target).square()
        return FixedPart(entropy.log_sum, entropy.constant + squares / _wrong(num_classes))

    def local_terms(
        self,
        logits: Float[Tensor, "rows new"],
        target: Int[Tensor, " rows"],
        fixed: FixedPart,
        num_classes: int,
    ) -> LocalTerms:
        """Expand in the new logits: that of cross entropy plus a diagonal."""
        entropy = CrossEntropy().local_terms(logits, target, fixed, num_classes)
        slope = (2 / _wrong(num_classes)) * (1 - indicator(logits, target))
        return LocalTerms(
            value=entropy.value + (slope * logits.square()).sum(1) / 2,
            gradient=entropy.gradient + slope * logits,
            diagonal=entropy.diagonal + slope,
            outer=entropy.outer,
        )


def _wrong(num_classes: int) -> int:
    """Return the number of wrong classes; a head of one class has none to average over."""
    return max(1, num_classes - 1)

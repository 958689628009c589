"""Cross entropy: loss = log sum_j exp(u_j) - u_y, with gradient softmax(u) - y.

The paper prints it with a factor 1 / C, but reports values without: there is none here.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from clinit.headtrain.losses.interface import FixedPart, LocalTerms, indicator, pick, spread


@dataclass(frozen=True, slots=True)
class CrossEntropy:
    """Cross entropy of the softmax of the logits."""

    def value(
        self, logits: Float[Tensor, "*bank rows classes"], labels: Int[Tensor, "*#bank rows"]
    ) -> Float[Tensor, "*bank rows"]:
        """Return the loss of each sample."""
        return logits.logsumexp(-1) - logits.gather(-1, spread(labels, logits)).squeeze(-1)

    def value_and_gradient(
        self,
        logits: Float[Tensor, "*bank rows classes"],
        labels: Int[Tensor, "*#bank rows"],
        out: Float[Tensor, "*bank rows classes"] | None = None,
    ) -> tuple[Float[Tensor, "*bank rows"], Float[Tensor, "*bank rows classes"]]:
        """Return the loss of each sample and its gradient with respect to its logits."""
        index = spread(labels, logits)
        gradient = torch.softmax(logits, -1, out=out)
        value = _log_sum(logits, gradient) - logits.gather(-1, index).squeeze(-1)
        minus_one = gradient.new_full((), -1.0).expand(index.shape)
        return value, gradient.scatter_add_(-1, index, minus_one)

    def fixed_part(
        self,
        logits: Float[Tensor, "rows fixed"],
        target: Int[Tensor, " rows"],
        num_classes: int,
    ) -> FixedPart:
        """Reduce the fixed logits to their log-sum and the logit of the label."""
        return FixedPart(_log_sum(logits, logits.softmax(1)), constant=-pick(logits, target))

    def local_terms(
        self,
        logits: Float[Tensor, "rows new"],
        target: Int[Tensor, " rows"],
        fixed: FixedPart,
        num_classes: int,
    ) -> LocalTerms:
        """Expand in the new logits: with p their probabilities, H = diag(p) - p p^T."""
        # The softmax of torch takes three times as long over few columns.
        largest = logits.amax(1)
        ratios = (logits - largest[:, None]).exp_()
        log_sum = torch.logaddexp(fixed.log_sum, largest + ratios.sum(1).log())
        p = ratios.mul_((largest - log_sum).exp()[:, None])
        return LocalTerms(
            value=log_sum + fixed.constant - pick(logits, target),
            gradient=p - indicator(logits, target),
            diagonal=p,
            outer=p,
        )


def _log_sum(
    logits: Float[Tensor, "*bank rows classes"], softmax: Float[Tensor, "*bank rows classes"]
) -> Float[Tensor, "*bank rows"]:
    """Return log sum_j exp(u_j) of logits whose softmax is there; -inf where there is none.

    The largest probability is exp(largest logit - log-sum), and never small: this is the log-sum
    without a second pass of exponentials.
    """
    if not logits.shape[-1]:
        return logits.new_full(logits.shape[:-1], -torch.inf)
    return logits.amax(-1) - softmax.amax(-1).log()

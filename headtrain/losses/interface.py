"""What a loss offers: values and gradients for training, local terms for calibration."""

from __future__ import annotations

from typing import NamedTuple, Protocol, runtime_checkable

from jaxtyping import Float, Int
from torch import Tensor


class FixedPart(NamedTuple):
    """All that the loss of a row needs to know of the logits that calibration keeps fixed."""

    log_sum: Float[Tensor, " rows"]
    """Log of the sum of their exponentials; -inf where there is none or it is not needed."""
    constant: Float[Tensor, " rows"]
    """Terms of the loss that depend on fixed logits only."""


class LocalTerms(NamedTuple):
    """Second-order expansion of the loss in the logits of the new rows.

    The Hessian of each row is diag(diagonal) - outer outer^T.
    """

    value: Float[Tensor, " rows"]
    gradient: Float[Tensor, "rows new"]
    diagonal: Float[Tensor, "rows new"]
    outer: Float[Tensor, "rows new"]


@runtime_checkable
class Loss(Protocol):
    """A loss of the logits of one sample; the last axis is that of the classes.

    Pure functions, no mean over samples and no weights: both are the caller's. `labels` are
    broadcast over leading axes, so that a bank of heads shares them.
    """

    def value(
        self, logits: Float[Tensor, "*bank rows classes"], labels: Int[Tensor, "*#bank rows"]
    ) -> Float[Tensor, "*bank rows"]:
        """Return the loss of each sample."""
        ...

    def value_and_gradient(
        self,
        logits: Float[Tensor, "*bank rows classes"],
        labels: Int[Tensor, "*#bank rows"],
        out: Float[Tensor, "*bank rows classes"] | None = None,
    ) -> tuple[Float[Tensor, "*bank rows"], Float[Tensor, "*bank rows classes"]]:
        """Return the loss of each sample and its gradient with respect to its logits.

        The gradient is written into `out` where that is given; `logits` stay as they are.
        """
        ...

    def fixed_part(
        self,
        logits: Float[Tensor, "rows fixed"],
        target: Int[Tensor, " rows"],
        num_classes: int,
    ) -> FixedPart:
        """Reduce the fixed logits; `target` is a column, or -1 where the label is a new row."""
        ...

    def local_terms(
        self,
        logits: Float[Tensor, "rows new"],
        target: Int[Tensor, " rows"],
        fixed: FixedPart,
        num_classes: int,
    ) -> LocalTerms:
        """Expand in the new logits; `target` is a column, or -1 where the label is fixed."""
        ...


def pick(logits: Float[Tensor, "rows columns"], target: Int[Tensor, " rows"]) -> Tensor:
    """Return the logit of column `target` of each row, 0 where `target` is -1."""
    if logits.shape[1] == 0:
        return logits.new_zeros(len(logits))
    picked = logits.gather(1, target.clamp(min=0)[:, None])[:, 0]
    return picked.where(target >= 0, picked.new_zeros(()))


def indicator(logits: Float[Tensor, "rows columns"], target: Int[Tensor, " rows"]) -> Tensor:
    """Return one-hot rows in the shape of `logits`, a row of zeros where `target` is -1."""
    one_hot = logits.new_zeros(logits.shape)
    if logits.shape[1] == 0:
        return one_hot
    # Not by the rows that have a column: to count them, a CUDA device would have to be waited for.
    present = (target >= 0).to(logits.dtype)[:, None]
    return one_hot.scatter_(1, target.clamp(min=0)[:, None], present)


def spread(
    labels: Int[Tensor, "*#bank rows"], logits: Float[Tensor, "*bank rows classes"]
) -> Int[Tensor, "*bank rows 1"]:
    """Return `labels` as the index of a gather along the classes of `logits`."""
    return labels.expand(logits.shape[:-1]).unsqueeze(-1)

"""The losses of `clinit.headtrain.train.losses`, differentiable by autograd.

They return the gradient together with the value, so the backward pass is one product; it is the
same code that trains the heads of a bank.
"""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from clinit.headtrain.train.losses import loss_named


def sample_losses(
    name: str, logits: Float[Tensor, "batch classes"], labels: Int[Tensor, " batch"]
) -> Float[Tensor, " batch"]:
    """Return the loss of each sample, differentiable once; at least in float32.

    Args:
        name: One of `clinit.headtrain.train.losses.LOSSES`.
        logits: Logits of any floating type; those of mixed precision are widened first.
        labels: Column of `logits` of each sample's class.
    """
    wide = logits if logits.dtype == torch.float64 else logits.float()
    losses: Tensor = _SampleLosses.apply(wide, labels, name)[0]
    return losses


class _SampleLosses(torch.autograd.Function):
    """Value and gradient together; the gradient is an output so that `torch.func` can follow."""

    @staticmethod
    def forward(logits: Tensor, labels: Tensor, name: str) -> tuple[Tensor, Tensor]:
        return loss_named(name).value_and_gradient(logits, labels)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
        _, gradient = output
        ctx.mark_non_differentiable(gradient)
        ctx.save_for_backward(gradient)

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor, None, None]:
        (gradient,) = ctx.saved_tensors
        return upstream[0].unsqueeze(-1) * gradient, None, None

    @staticmethod
    def vmap(
        info: Any, in_dims: tuple[int | None, ...], logits: Tensor, labels: Tensor, name: str
    ) -> tuple[tuple[Tensor, Tensor], tuple[int, int]]:
        """Take the axis of `vmap` as one of the leading axes that every loss has."""
        logits, labels = (
            values.movedim(axis, 0)
            if axis is not None
            else values.expand(info.batch_size, *values.shape)
            for values, axis in zip((logits, labels), in_dims, strict=False)
        )
        return _SampleLosses.apply(logits, labels, name), (0, 0)

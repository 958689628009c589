"""The two matrix products of an update, in float32 or bfloat16.

    logits     u = x W^T + b                 rows x (heads classes)
    gradient   dW = (1 / rows) (dL/du)^T x   (heads classes) x dim

In bfloat16 both operands and both results are rounded; the bias is added in float32.
"""

from __future__ import annotations

from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor


@runtime_checkable
class Products(Protocol):
    """Products of one batch with blocks of at most as many rows as were announced."""

    def read(self, features: Float[Tensor, "batch dim"]) -> None:
        """Take the features of a batch, for all blocks."""
        ...

    def logits(
        self,
        weight: Float[Tensor, "rows dim"],
        bias: Float[Tensor, " rows"],
        out: Float[Tensor, "batch rows"],
    ) -> None:
        """Write the logits of the batch into `out`."""
        ...

    def weight_gradient(
        self, gradient: Float[Tensor, "batch rows"], scale: float, out: Float[Tensor, "rows dim"]
    ) -> None:
        """Write the gradient of the weight, `scale` times the product, into `out`."""
        ...


class Float32Products:
    """Products of float32 matrices; CUDA may take them in TF32, where that is switched on."""

    def __init__(self) -> None:
        self._features = torch.empty(0)

    def read(self, features: Float[Tensor, "batch dim"]) -> None:
        """Keep a reference."""
        self._features = features

    def logits(
        self,
        weight: Float[Tensor, "rows dim"],
        bias: Float[Tensor, " rows"],
        out: Float[Tensor, "batch rows"],
    ) -> None:
        """Multiply and add in one call."""
        torch.addmm(bias, self._features, weight.t(), out=out)

    def weight_gradient(
        self, gradient: Float[Tensor, "batch rows"], scale: float, out: Float[Tensor, "rows dim"]
    ) -> None:
        """Multiply."""
        torch.addmm(out, gradient.t(), self._features, beta=0, alpha=scale, out=out)


class Bf16Products:
    """Products of bfloat16 copies, made in place for each block."""

    def __init__(self, batch: int, rows: int, dim: int, device: torch.device) -> None:
        def empty(*shape: int) -> Tensor:
            return torch.empty(shape, dtype=torch.bfloat16, device=device)

        self._features = empty(batch, dim)
        self._weight = empty(rows, dim)
        self._logits = empty(batch * rows)

    def read(self, features: Float[Tensor, "batch dim"]) -> None:
        """Copy them; give them as float32, which is faster to convert than float16."""
        self._features.copy_(features)

    def logits(
        self,
        weight: Float[Tensor, "rows dim"],
        bias: Float[Tensor, " rows"],
        out: Float[Tensor, "batch rows"],
    ) -> None:
        """Multiply in bfloat16 and add the bias in float32."""
        rounded = self._weight[: len(weight)].copy_(weight)
        logits = self._logits[: out.numel()].view(out.shape)
        torch.mm(self._features, rounded.t(), out=logits)
        out.copy_(logits).add_(bias)  # an addition of two types would allocate

    def weight_gradient(
        self, gradient: Float[Tensor, "batch rows"], scale: float, out: Float[Tensor, "rows dim"]
    ) -> None:
        """Multiply in bfloat16; the rounded weight of the block is not needed any more."""
        rounded = self._logits[: gradient.numel()].view(gradient.shape).copy_(gradient)
        product = self._weight[: len(out)]
        torch.addmm(product, rounded.t(), self._features, beta=0, alpha=scale, out=product)
        out.copy_(product)

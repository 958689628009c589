"""The precision of the matrix products of a bank.

    float32   as stored
    tf32      CUDA: operands rounded to 11 significant bits, sums in float32
    bf16      operands and results rounded to 8 significant bits, sums in float32

Weights, losses and AdamW are float32 whatever the precision of the products.

A bank of heads: K linear classifiers of the same classes, side by side in one tensor.

All heads read the same batch, so the logits of the whole bank are one matrix product.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from jaxtyping import Float
from torch import Tensor

from clinit.errors import DeviceError
from clinit.headtrain.array import as_array, as_tensor
from clinit.headtrain.rows import Rows
from clinit.headtrain.study.parts import Training
from clinit.machine import CPU_WITH_BF16, cpu_has_bf16

_AMPERE = (8, 0)


def check_precision(precision: str, device: torch.device) -> None:
    """Refuse a precision that `device` does not compute in.

    Raises:
        DeviceError: With the precision that works instead.
    """
    remedy = "Use --precision float32"
    if device.type == "cuda":
        if precision != "float32" and torch.cuda.get_device_capability(device) < _AMPERE:
            raise DeviceError(
                f"--precision {precision} needs a CUDA device of compute capability 8.0 or"
                f" later, {torch.cuda.get_device_name(device)} has an earlier one",
                remedy=f"{remedy}.",
            )
    elif precision == "tf32":
        raise DeviceError(
            "--precision tf32 is a format of CUDA devices, but training runs on the CPU",
            remedy=f"{remedy}{', or bf16 which this CPU has' if cpu_has_bf16() else ''}.",
        )
    elif precision == "bf16" and not cpu_has_bf16():
        raise DeviceError(
            "--precision bf16 was asked for, but this CPU has no instructions for it"
            f" ({', '.join(CPU_WITH_BF16)}): emulated, it would be slower than float32",
            remedy=f"{remedy}.",
        )


@contextmanager
def products_in(precision: str) -> Iterator[None]:
    """Let CUDA multiply float32 matrices as `precision` says within the block.

    PyTorch has one switch for the process: it is put back as it was.
    """
    switch = torch.backends.cuda.matmul
    before = switch.fp32_precision
    switch.fp32_precision = "tf32" if precision == "tf32" else "ieee"
    try:
        yield
    finally:
        switch.fp32_precision = before


class Bank:
    """Heads that start as copies of one head and part by their initialisation and training."""

    weight: Float[Tensor, "heads classes dim"]
    bias: Float[Tensor, "heads classes"]

    def __init__(
        self,
        head: Rows,
        heads: Sequence[Training],
        device: torch.device,
    ) -> None:
        self.heads = tuple(heads)
        """The training of each head, resolved; all in one precision."""
        self.device = device
        self.precision = self.heads[0].precision if self.heads else "float32"
        """Precision of the products of training, see `clinit.headtrain.train.heads`."""
        weight, bias = self._stacked(head)
        self.weight, self.bias = weight, bias

    @property
    def num_heads(self) -> int:
        """Number of heads."""
        return len(self.heads)

    @property
    def num_classes(self) -> int:
        """Number of rows of each head."""
        return self.weight.shape[1]

    @property
    def dim(self) -> int:
        """Width of a feature vector."""
        return self.weight.shape[2]

    def grow(self, rows: Rows) -> None:
        """Append the same rows to every head."""
        weight, bias = self._stacked(rows)
        self.weight = torch.cat([self.weight, weight], dim=1)
        self.bias = torch.cat([self.bias, bias], dim=1)

    def rows(self, index: int) -> Rows:
        """Copy one head, as arrays where the bank is; see `clinit.headtrain.array.as_array`."""
        return Rows(as_array(self.weight[index].double()), as_array(self.bias[index].double()))

    def write(self, index: int, start: int, rows: Rows) -> None:
        """Overwrite rows of one head, from row `start` on."""
        stop = start + rows.weight.shape[0]
        self.weight[index, start:stop] = as_tensor(rows.weight)
        self.bias[index, start:stop] = as_tensor(rows.bias)

    def logits(
        self,
        features: Float[Tensor, "rows dim"],
        out: Float[Tensor, "rows heads classes"],
        heads: slice = slice(None),
    ) -> Float[Tensor, "rows heads classes"]:
        """Write the logits of `heads` (all, unless told) into `out`, and return it."""
        weight, bias = self.weight[heads].view(-1, self.dim), self.bias[heads].view(-1)
        torch.addmm(bias, features, weight.t(), out=out.view(len(features), -1))
        return out

    def _stacked(self, rows: Rows) -> tuple[Tensor, Tensor]:
        weight = as_tensor(rows.weight).to(self.device, torch.float32)
        bias = as_tensor(rows.bias).to(self.device, torch.float32)
        return (
            weight.repeat(len(self.heads), 1, 1),
            bias.repeat(len(self.heads), 1),
        )

"""A bank of heads, the rows that it reads, and the precision of its matrix products.

A bank contains K linear classifiers of the same classes in one tensor. All read the same batch, so
that the logits of the bank are one matrix product, in one of three precisions:

    float32   as stored
    tf32      CUDA: operands rounded to 11 significant bits, sums in float32
    bf16      operands and results rounded to 8 significant bits, sums in float32

Weights, losses and AdamW are float32 whatever the precision of the products.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from clinit.errors import DeviceError
from clinit.extract.cache.features import StoredRows
from clinit.headtrain.heads.array import FeatureRows, StreamedRows, as_array, as_tensor, placed
from clinit.headtrain.heads.linear import Rows
from clinit.headtrain.protocol.stream.buffer import is_resident
from clinit.headtrain.protocol.study.parts import Training
from clinit.machine import cpu_has_bf16

_AMPERE = (8, 0)
Weight = Float[Tensor, "rows dim"]
"""Weights of rows, of one head or of several."""
Bias = Float[Tensor, " rows"]
BankLogits = Float[Tensor, "rows heads classes"]
"""Logits that several heads give to rows of data."""


def check_precision(precision: str, device: torch.device) -> None:
    """Check that `device` supports a precision.

    Raises:
        DeviceError: If it does not; the remedy is a precision that works.
    """
    if precision == "float32":
        return
    if device.type == "cuda":
        fits = torch.cuda.get_device_capability(device) >= _AMPERE
        lacking = "a CUDA device of compute capability 8.0 or later"
    else:  # emulated, bfloat16 would be slower than float32
        fits = precision == "bf16" and cpu_has_bf16()
        lacking = "a CPU with bfloat16 products" if precision == "bf16" else "a CUDA device"
    if not fits:
        raise DeviceError(
            f"--precision {precision} needs {lacking}, and training runs on {device.type}",
            remedy="Use --precision float32.",
        )


@contextmanager
def products_in(precision: str) -> Iterator[None]:
    """Let CUDA multiply float32 matrices in `precision` within the block.

    The switch of PyTorch is global; its previous value is restored after the block.
    """
    switch = torch.backends.cuda.matmul
    before = switch.fp32_precision
    switch.fp32_precision = "tf32" if precision == "tf32" else "ieee"
    try:
        yield
    finally:
        switch.fp32_precision = before


@dataclass(frozen=True, slots=True, eq=False)
class LabelledRows:
    """Rows labelled by head row.

    Labels are on the device of the bank; features are on this device, in host memory, or on disk.
    """

    features: Float[Any, "rows dim"]
    """A tensor or `StoredRows`, in the stored dtype."""
    labels: Int[Tensor, " rows"]

    @classmethod
    def on(
        cls, device: torch.device, features: FeatureRows, labels: Int[np.ndarray, " rows"]
    ) -> LabelledRows:
        """Move labels to `device`, and features too if they are in memory and fit."""
        moved = torch.from_numpy(labels).to(device)
        if isinstance(features, StoredRows):
            return cls(features, moved)
        place = device if is_resident(features.nbytes, device) else torch.device("cpu")
        return cls(torch.from_numpy(features).to(place), moved)

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def is_resident(self) -> bool:
        """Whether features are on the device of the labels."""
        return not self.is_stored and self.features.device == self.labels.device

    @property
    def is_stored(self) -> bool:
        """Whether features are on disk."""
        return isinstance(self.features, StoredRows)

    def arrays(self) -> FeatureRows:
        """Return the features for array code: the resident array, or rows to stream."""
        if self.is_resident:
            return as_array(self.features)
        host = self.features if self.is_stored else self.features.numpy()
        return StreamedRows(host, partial(placed, device=self.labels.device))

    def first(self, rows: int) -> LabelledRows:
        """Return the first `rows` rows, without a copy."""
        part = slice(0, rows)
        features = self.features.select(part) if self.is_stored else self.features[part]
        return LabelledRows(features, self.labels[part])

    def take(self, rows: Int[Tensor, " taken"]) -> LabelledRows:
        """Copy rows to the device of the labels."""
        device = self.labels.device
        return LabelledRows(self.gathered(rows).to(device), self.labels[rows.to(device)])

    def subset(self, rows: Int[Tensor, " taken"]) -> LabelledRows:
        """Choose rows; their features stay on the device, in host memory or on disk."""
        chosen = self.features.select(rows.cpu().numpy()) if self.is_stored else self.gathered(rows)
        return LabelledRows(chosen, self.labels[rows.to(self.labels.device)])

    def gathered(self, rows: Int[Tensor, " taken"]) -> Float[Tensor, "taken dim"]:
        """Copy the features of rows on their device; rows on disk into host memory."""
        if self.is_stored:
            return torch.from_numpy(self.features[rows.cpu().numpy()])
        found: Tensor = self.features[rows.to(self.features.device)]
        return found

    def widened(self, part: slice) -> Float[Tensor, "part dim"]:
        """Copy the features of a part of the rows to the device of the labels, as float32."""
        found = self.features[part]
        found = torch.from_numpy(found) if self.is_stored else found
        return found.to(self.labels.device).float()


class Bank:
    """Heads that start as copies of one head; initialisation and training make them differ."""

    weight: Float[Tensor, "heads classes dim"]
    bias: Float[Tensor, "heads classes"]

    def __init__(self, head: Rows, heads: Sequence[Training], device: torch.device) -> None:
        self.heads = tuple(heads)
        """Training settings of each head, resolved; all heads have the same precision."""
        self.device = device
        self.precision = self.heads[0].precision if self.heads else "float32"
        """Precision of the products of training."""
        self.states: list[dict[str, Any]] = [{} for _ in self.heads]
        """State that a user's step keeps for each head."""
        self.weight, self.bias = self._stacked(head)

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

    @property
    def has_tf32(self) -> bool:
        """Whether its device multiplies faster in TF32 than in float32."""
        cuda = torch.cuda
        return self.device.type == "cuda" and cuda.get_device_capability(self.device) >= _AMPERE

    @property
    def row_values(self) -> int:
        """Numbers in memory for each row that is evaluated."""
        return self.num_heads * self.num_classes

    def grow(self, rows: Rows) -> None:
        """Append the same rows to every head."""
        weight, bias = self._stacked(rows)
        self.weight = torch.cat([self.weight, weight], dim=1)
        self.bias = torch.cat([self.bias, bias], dim=1)

    def rows(self, index: int) -> Rows:
        """Copy one head, as arrays on the bank's device, as `heads.array.as_array`."""
        return Rows(as_array(self.weight[index].double()), as_array(self.bias[index].double()))

    def write(self, index: int, start: int, rows: Rows) -> None:
        """Overwrite rows of one head, from row `start` on."""
        stop = start + rows.weight.shape[0]
        self.weight[index, start:stop] = as_tensor(rows.weight)
        self.bias[index, start:stop] = as_tensor(rows.bias)

    def logits(
        self, features: Float[Tensor, "rows dim"], out: BankLogits, heads: slice = slice(None)
    ) -> BankLogits:
        """Write the logits of `heads` (default: all) into `out`, and return it."""
        weight, bias = self.weight[heads].view(-1, self.dim), self.bias[heads].view(-1)
        torch.addmm(bias, features, weight.t(), out=out.view(len(features), -1))
        return out

    def _stacked(self, rows: Rows) -> tuple[Tensor, Tensor]:
        weight = as_tensor(rows.weight).to(self.device, torch.float32)
        bias = as_tensor(rows.bias).to(self.device, torch.float32)
        return weight.repeat(self.num_heads, 1, 1), bias.repeat(self.num_heads, 1)

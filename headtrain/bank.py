"""A bank of heads: K linear classifiers of the same classes, side by side in one tensor.

All heads read the same batch, so the logits of the whole bank are one matrix product.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from clinit.headtrain.config import HeadConfig
from clinit.headtrain.init import Rows


class Bank:
    """Heads that start as copies of one head and part by their initialisation and training."""

    weight: Float[Tensor, "heads classes dim"]
    bias: Float[Tensor, "heads classes"]

    def __init__(
        self,
        head: Rows,
        heads: Sequence[HeadConfig],
        device: torch.device,
        precision: str = "float32",
    ) -> None:
        self.heads = tuple(heads)
        self.device = device
        self.precision = precision
        """Of the products of training, see `clinit.headtrain.precision`."""
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
        """Copy one head."""
        return Rows(
            weight=self.weight[index].double().cpu().numpy(),
            bias=self.bias[index].double().cpu().numpy(),
        )

    def write(self, index: int, start: int, rows: Rows) -> None:
        """Overwrite rows of one head, from row `start` on."""
        stop = start + len(rows.weight)
        self.weight[index, start:stop] = torch.from_numpy(rows.weight)
        self.bias[index, start:stop] = torch.from_numpy(rows.bias)

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
        weight = torch.from_numpy(np.asarray(rows.weight, dtype=np.float32)).to(self.device)
        bias = torch.from_numpy(np.asarray(rows.bias, dtype=np.float32)).to(self.device)
        return (
            weight.repeat(len(self.heads), 1, 1),
            bias.repeat(len(self.heads), 1),
        )

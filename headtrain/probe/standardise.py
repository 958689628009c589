"""Features of mean 0 and deviation 1, and heads on them as heads on the features as stored.

(h - m) / s . w + b = h . (w / s) + (b - m . (w / s))
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from clinit.headtrain.bank.rows import LabelledRows
from clinit.headtrain.rows import Rows

BLOCK_ROWS = 8192


@dataclass(frozen=True, slots=True, eq=False)
class Standard:
    """Mean and deviation of each feature, on the device of the heads."""

    mean: Float[Tensor, " dim"]
    """float64."""
    deviation: Float[Tensor, " dim"]
    """float64; 1 for a feature that is constant."""

    @classmethod
    def of(cls, rows: LabelledRows) -> Standard:
        """Return those of the rows: one pass for the means, one for the deviations."""
        device, dim, total = rows.labels.device, rows.features.shape[1], len(rows)
        mean = torch.zeros(dim, dtype=torch.float64, device=device)
        for block in blocks(total):
            mean += rows.widened(block).double().sum(0) / total
        variance = torch.zeros_like(mean)
        for block in blocks(total):
            variance += (rows.widened(block).double() - mean).square().sum(0) / total
        deviation = variance.sqrt()
        return cls(mean, deviation.where(deviation > 1e-12, torch.ones_like(mean)))

    @classmethod
    def none(cls, rows: LabelledRows) -> Standard:
        """Return the one that changes nothing."""
        zeros = torch.zeros(rows.features.shape[1], dtype=torch.float64, device=rows.labels.device)
        return cls(zeros, torch.ones_like(zeros))

    def apply(self, features: Float[Tensor, "rows dim"]) -> Float[Tensor, "rows dim"]:
        """Return standardised features, in float64."""
        return (features.double() - self.mean) / self.deviation

    def folded(self, weight: Float[Tensor, "classes dim"], bias: Float[Tensor, " classes"]) -> Rows:
        """Return a head on standardised features as one on the features as stored."""
        own = weight.double() / self.deviation
        shifted = bias.double() - own @ self.mean
        return Rows(own.cpu().numpy(), shifted.cpu().numpy())


def blocks(rows: int, size: int = BLOCK_ROWS) -> list[slice]:
    """Cut row numbers into blocks."""
    return [slice(start, min(start + size, rows)) for start in range(0, rows, size)]

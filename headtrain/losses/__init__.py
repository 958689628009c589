"""Losses of a head, by name: cross entropy, rescaled squared error, squentropy."""

from __future__ import annotations

from clinit.headtrain.losses.ce import CrossEntropy
from clinit.headtrain.losses.interface import Loss
from clinit.headtrain.losses.mse import SquaredError
from clinit.headtrain.losses.sqen import Squentropy

LOSSES: dict[str, Loss] = {"ce": CrossEntropy(), "mse": SquaredError(), "sqen": Squentropy()}
"""With the paper's constants; `SquaredError(kappa, beta)` for others."""


def loss_named(name: str) -> Loss:
    """Return the loss of that name."""
    if name not in LOSSES:
        raise ValueError(f"loss is {name!r}, expected one of {tuple(LOSSES)}")
    return LOSSES[name]


__all__ = ["LOSSES", "CrossEntropy", "Loss", "SquaredError", "Squentropy", "loss_named"]

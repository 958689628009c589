"""The settings of a linear probe and of `clinit align`. Nothing here imports PyTorch or NumPy."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

from clinit.headtrain.protocol.study.parts import (
    DEVICE,
    LOSS,
    MAX_SEED,
    PRECISION,
    Device,
    Loss,
    Precision,
)
from clinit.setting import Part, setting


@dataclass(frozen=True, kw_only=True, slots=True)
class ProbeConfig(Part):
    """A linear probe: the training of its heads, and the values to try."""

    panel: ClassVar[str] = "Probe"
    by: Literal["adamw", "lbfgs"] = setting(
        "adamw",
        "Training: AdamW on batches with a cosine schedule, all values of the grid side by side; or"
        " L-BFGS on all rows at once, to the minimum.",
    )
    lr: tuple[float, ...] | None = setting(
        None,
        "adamw: learning rates to try.",
        above=0,
        otherwise="1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2",
    )
    weight_decay: tuple[float, ...] | None = setting(
        None, "adamw: decoupled weight decays to try.", least=0, otherwise="0, 0.1, 1, 10"
    )
    epochs: int | None = setting(
        None, "adamw: passes over the training rows.", least=1, otherwise="30"
    )
    batch_size: int | None = setting(
        None,
        "adamw: rows per batch, at most all rows. Rows that do not fill a batch are left out of"
        " the epoch.",
        least=1,
        most=100_000_000,
        otherwise="256",
    )
    c: tuple[float, ...] | None = setting(
        None,
        "lbfgs: inverse strengths of the L2 penalty to try, as in scikit-learn.",
        above=0,
        otherwise="1e-6, 1e-5, …, 1e4",
    )
    max_iterations: int | None = setting(
        None, "lbfgs: maximum number of iterations per value of c.", least=1, otherwise="1000"
    )
    held_out: float = setting(
        0.2,
        "Fraction of the training rows of each class on which the values are chosen; the head is"
        " then trained on all rows.",
        above=0,
        most=0.9,
    )
    standardise: bool = setting(
        False, "Give each feature mean 0 and deviation 1 over the training rows."
    )
    seed: int = setting(0, "Seed of the held-out rows and of the batches.", least=0, most=MAX_SEED)
    device: Device = setting("auto", DEVICE)

    def __post_init__(self) -> None:
        """Check every field, and that no field of the other training is set.

        Raises:
            ValueError: If the value of a field is not allowed, or a field is set that only the
                other training reads.
        """
        Part.__post_init__(self)
        for by, defaults in PROBE_DEFAULTS.items():
            for name in defaults:
                if by != self.by and getattr(self, name) is not None:
                    raise ValueError(f"{name} is read only by {by}, but training is by {self.by}")

    def resolved(self) -> ProbeConfig:
        """Return the settings with the defaults of the training filled in."""
        defaults = PROBE_DEFAULTS[self.by]
        return replace(
            self, **{name: each for name, each in defaults.items() if getattr(self, name) is None}
        )

    @property
    def grid(self) -> tuple[dict[str, float], ...]:
        """The combinations to try, simplest first: of equally good combinations, the first wins."""
        settled = self.resolved()
        if settled.by == "lbfgs":
            return tuple({"c": c} for c in sorted(settled.c or ()))
        return tuple(
            {"lr": lr, "weight_decay": decay}
            for lr in sorted(settled.lr or ())
            for decay in sorted(settled.weight_decay or (), reverse=True)
        )


PROBE_DEFAULTS: Mapping[str, Mapping[str, Any]] = {
    "adamw": {
        "lr": (1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2),
        "weight_decay": (0.0, 0.1, 1.0, 10.0),
        "epochs": 30,
        "batch_size": 256,
    },
    "lbfgs": {"c": tuple(10.0**power for power in range(-6, 5)), "max_iterations": 1000},
}
"""Defaults of a probe, by its training."""


@dataclass(frozen=True, kw_only=True, slots=True)
class AlignConfig(Part):
    """The fine-tuning of a base head with another loss; the defaults are the paper's."""

    panel: ClassVar[str] = "Training"
    loss: Loss = setting("mse", LOSS)
    epochs: int = setting(50, "Passes over the training rows.", least=1)
    batch_size: int = setting(
        512,
        "Rows per batch, at most all rows. Rows that do not fill a batch are left out of the"
        " epoch.",
        least=1,
        most=100_000_000,
    )
    lr: float = setting(1e-3, "Initial learning rate of AdamW; a cosine lowers it to 0.", above=0)
    weight_decay: float = setting(0.05, "Decoupled weight decay of the head.", least=0)
    seed: int = setting(0, "Seed of the batches.", least=0, most=MAX_SEED)
    device: Device = setting("auto", DEVICE)
    precision: Precision = setting("float32", PRECISION)

"""The settings of `clinit head fit` and `clinit head align`; without PyTorch and NumPy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from clinit.headtrain.protocol.study.parts import DEVICE, LOSS, MAX_SEED, PRECISION, Loss, Precision
from clinit.setting import SettingGroup, setting

HELD_OUT = 0.2
C = (1e-4, 1e-3, 1e-2, 1e-1, 1.0)
"""Of standardised features, the best penalty is near one of these values, whatever the unit of the
features; a larger c takes longest."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ProbeConfig(SettingGroup):
    """A head for the classes of a cache: how it is fitted, and the values to try."""

    panel: ClassVar[str] = "Fit"
    c: tuple[float, ...] | None = setting(
        None,
        "Inverse strengths of the L2 penalty to try, as in scikit-learn.",
        above=0,
        otherwise="1e-4, 1e-3, 1e-2, 0.1, 1",
    )
    max_iterations: int = setting(1000, "Maximum number of iterations per value of c.", least=1)
    standardise: bool = setting(
        True, "Give each feature mean 0 and deviation 1 over the training rows."
    )
    held_out: float = setting(
        HELD_OUT,
        "Fraction of the training rows of each class on which c is chosen; the head is then fitted"
        " to all rows.",
        above=0,
        most=0.9,
    )
    seed: int = setting(0, "Seed of the held-out rows.", least=0, most=MAX_SEED)
    device: str = setting("auto", DEVICE)

    @property
    def grid(self) -> tuple[float, ...]:
        """The values of c to try, ascending."""
        return tuple(sorted(self.c or C))


@dataclass(frozen=True, kw_only=True, slots=True)
class AlignConfig(SettingGroup):
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
    device: str = setting("auto", DEVICE)
    precision: Precision = setting("float32", PRECISION)

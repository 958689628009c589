"""The settings of `clinit head fit` and `clinit head align`; without PyTorch and NumPy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

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

HeadFit = Literal["logistic", "ridge", "lda"]
C = (1e-4, 1e-3, 1e-2, 1e-1, 1.0)
"""Of standardised features, the best penalty is near one of these values, whatever the unit of the
features; a larger c takes longest."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ProbeConfig(Part):
    """A head for the classes of a cache: how it is fitted, and the values to try."""

    panel: ClassVar[str] = "Fit"
    method: HeadFit = setting(
        "logistic",
        "Logistic regression, by L-BFGS to the minimum; or least squares (ridge) or linear"
        " discriminants (lda), each in one pass.",
    )
    c: tuple[float, ...] | None = setting(
        None,
        "logistic: inverse strengths of the L2 penalty to try, as in scikit-learn.",
        above=0,
        otherwise="1e-4, 1e-3, 1e-2, 0.1, 1",
    )
    max_iterations: int = setting(
        1000, "logistic: maximum number of iterations per value of c.", least=1
    )
    standardise: bool = setting(
        True, "logistic: give each feature mean 0 and deviation 1 over the training rows."
    )
    held_out: float = setting(
        0.2,
        "Fraction of the training rows of each class on which c and the scale of the logits are"
        " chosen; the head is then fitted to all rows.",
        above=0,
        most=0.9,
    )
    seed: int = setting(0, "Seed of the held-out rows.", least=0, most=MAX_SEED)
    device: Device = setting("auto", DEVICE)

    def __post_init__(self) -> None:
        """Check every field.

        Raises:
            ValueError: If the value of a field is not allowed, or if `c` is set for another method.
        """
        Part.__post_init__(self)
        if self.c is not None and self.method != "logistic":
            raise ValueError(f"c is read only by logistic, not by {self.method}")

    @property
    def grid(self) -> tuple[float, ...]:
        """The values of c to try, ascending; empty for heads that are solved."""
        return tuple(sorted(self.c or C)) if self.method == "logistic" else ()


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

"""The settings of `clinit add` and `clinit remember`. Nothing here imports PyTorch or NumPy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from clinit.headtrain.setting import Part, setting
from clinit.headtrain.study.parts import LOSS, MAX_SEED, NEW_SHARE, Init, Loss, NewShare

OldRows = Literal["auto", "kept", "pseudo", "head", "none"]


HELD_OUT = (
    "Share of the images of each class of five or more that is kept aside to measure the model on;"
    " a folder val takes its place."
)
HOLD_OUT = 0.2
LEFT_OUT: tuple[Init, ...] = ("class-mean", "least-square", "imprint", "lda")
"""Starts that are measured by leaving images out."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Kept(Part):
    """What a model in use keeps of images."""

    panel: ClassVar[str] = "What is kept"
    keep: int = setting(0, "Training rows per class that the model keeps for later.", least=0)
    variances: bool = setting(
        False, "Remember the variances of each class too, not its mean alone."
    )
    seed: int = setting(0, "Seed of everything random.", least=0, most=MAX_SEED)


@dataclass(frozen=True, kw_only=True, slots=True)
class RememberConfig(Kept):
    """What a model remembers of its classes."""

    hold_out: float = setting(HOLD_OUT, HELD_OUT, least=0, most=0.9)


@dataclass(frozen=True, kw_only=True, slots=True)
class AddConfig(Kept):
    """How classes are added to a model in use."""

    panel: ClassVar[str] = "How classes are added"
    hold_out: float | None = setting(
        None,
        f"{HELD_OUT} At 0, each image is answered by rows that were computed without it.",
        least=0,
        most=0.9,
        otherwise="0; of rows that are fitted or trained: 0.2",
    )
    new_share: NewShare = setting("auto", NEW_SHARE, above=0, most=0.99)
    # Before any training, fitted rows know 5 to 12 points more of classes of 20 images or more.
    init: Init = setting("fitted", "Initialisation of the rows of added classes.")
    iterations: int = setting(
        0, "Updates of the whole head; 0 takes the rows as computed.", least=0
    )
    lr: float = setting(1e-3, "Learning rate of AdamW.", above=0)
    loss: Loss = setting("ce", LOSS)
    old_rows: OldRows = setting(
        "auto",
        "What stands for images of old classes: real rows (kept by the model, or of --old),"
        " rows drawn from the statistics that it remembers (pseudo), rows drawn from what its"
        " head says of them (head), or nothing; auto: the first of these that there is.",
    )

    @property
    def aside(self) -> float:
        """The share of images that is kept aside."""
        if self.hold_out is not None:
            return self.hold_out
        return 0.0 if self.init in LEFT_OUT and not self.iterations else HOLD_OUT

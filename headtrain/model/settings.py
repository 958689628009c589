"""The settings of `clinit add` and `clinit remember`. Nothing here imports PyTorch or NumPy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from clinit.headtrain.setting import Part, setting
from clinit.headtrain.study.parts import LOSS, MAX_SEED, NEW_SHARE, Init, Loss, NewShare

OldRows = Literal["auto", "kept", "pseudo", "head", "none"]


LEFT_OUT: tuple[Init, ...] = ("class-mean", "least-square", "fitted", "imprint", "lda")
"""Starts of which it is known what they answer without an image."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RememberConfig(Part):
    """Contents of the memory of a model in use."""

    panel: ClassVar[str] = "Memory"
    hold_out: float | None = setting(
        None,
        "Share of the images of each class of five or more that is kept aside to measure the"
        " model on; a folder val takes its place. Rows of added classes as computed are measured"
        " by leaving images out.",
        least=0,
        most=0.9,
        otherwise="0 for rows as computed, else 0.2",
    )
    keep: int = setting(0, "Training rows per class that the model keeps for later.", least=0)
    seed: int = setting(0, "Seed of everything random.", least=0, most=MAX_SEED)

    @property
    def aside(self) -> float:
        """The share of images that is kept aside."""
        return 0.2 if self.hold_out is None else self.hold_out


@dataclass(frozen=True, kw_only=True, slots=True)
class AddConfig(RememberConfig):
    """How classes are added to a model in use."""

    panel: ClassVar[str] = "How classes are added"
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
        "Substitute for images of old classes: real rows (kept by the model, or of --old), rows"
        " drawn from the statistics that it remembers (pseudo), rows drawn from the weights of"
        " its head (head), or none; auto: the first available of these.",
    )

    @property
    def leaves_out(self) -> bool:
        """Whether no image of an added class is kept aside, unless a share of them is given."""
        return self.hold_out is None and self.init in LEFT_OUT and not self.iterations

"""The settings of `clinit add` and `clinit remember`. Nothing here imports PyTorch or NumPy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from clinit.headtrain.heads.start.settings import MAX_OLD_LOSS, NEW_SHARE, Init, NewShare
from clinit.headtrain.protocol.study.parts import LOSS, MAX_SEED, Loss
from clinit.setting import Part, fields_of, setting

AddInit = Literal["auto"] | Init
WRITES_MODELS = "Give a model that `clinit add`, `clinit remember` or `clinit export` has written."
Arrival = Literal["add", "replace", "more"]
OldRows = Literal["auto", "kept", "pseudo", "head", "none"]

LEFT_OUT = ("auto", "class-mean", "least-square", "discriminant", "fitted", "imprint", "lda")
"""Starts whose leave-one-out logits have a closed form or are computed quickly."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RememberConfig(Part):
    """Settings for the memory of a model."""

    panel: ClassVar[str] = "Memory"
    hold_out: float | None = setting(
        None,
        "Share of the images of each class of five or more that is held out to measure the"
        " model; a folder val replaces it. Rows used as computed are measured by leaving images"
        " out.",
        least=0,
        most=0.9,
        otherwise="0 for rows as computed, else 0.2",
    )
    keep: int = setting(0, "Training rows per class that the model stores for later.", least=0)
    seed: int = setting(0, "Seed of everything random.", least=0, most=MAX_SEED)

    @property
    def aside(self) -> float:
        """The share of images that is held out."""
        return 0.2 if self.hold_out is None else self.hold_out


@dataclass(frozen=True, kw_only=True, slots=True)
class AddConfig(RememberConfig):
    """Settings for adding classes to a model."""

    panel: ClassVar[str] = "How classes are added"
    max_old_loss: float = setting(1.0, MAX_OLD_LOSS, least=0, most=100)
    init: AddInit = setting(
        "auto",
        "Initialisation of the rows of added classes; auto: discriminant if at least half of the"
        " old classes have images or statistics; else fitted, because features drawn from the"
        " weights of a head show too little of the old classes.",
    )
    new_share: NewShare = setting(
        "auto", f"Rows other than discriminants: {NEW_SHARE[0].lower()}{NEW_SHARE[1:]}",
        above=0, most=0.99,
    )  # fmt: skip
    iterations: int = setting(
        0, "Training updates of the whole head; 0 uses the rows as computed.", least=0
    )
    lr: float = setting(1e-3, "Learning rate of AdamW.", above=0)
    loss: Loss = setting("ce", LOSS)
    activation: Literal["softmax", "sigmoid"] | None = setting(
        None,
        "What makes probabilities of logits: a softmax over classes, or a sigmoid for each class,"
        " as for heads trained with binary cross entropy.",
        otherwise="as the model; softmax",
    )
    old_rows: OldRows = setting(
        "auto",
        "Features that stand in for images of old classes: real ones (kept by the model, or from"
        " --old), drawn from the statistics that it remembers (pseudo), drawn from the weights"
        " of its head (head), or none; auto: the first available of these.",
    )

    def __post_init__(self) -> None:
        """Check every field, and that the learning rate is used.

        Raises:
            ValueError: If a field does not take its value.
        """
        Part.__post_init__(self)
        if not self.iterations and self.lr != fields_of(AddConfig)["lr"].default:
            raise ValueError(f"lr {self.lr:g} has no effect without iterations: nothing is trained")

    @property
    def leaves_out(self) -> bool:
        """Whether added classes are measured by leaving images out; then none is held out."""
        return self.hold_out is None and self.init in LEFT_OUT and not self.iterations

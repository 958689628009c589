"""The settings of `clinit add` and `clinit remember`. Nothing here imports PyTorch or NumPy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from clinit.headtrain.heads.start.settings import NEW_SHARE, NewShare
from clinit.setting import SettingGroup, setting

AddInit = Literal["auto", "discriminant", "fitted", "least-square", "class-mean", "imprint"]
"""Starts whose rows need no training, and whose left-out logits are computed quickly."""
WRITES_MODELS = "Give a model that `clinit add`, `clinit remember` or `clinit export` has written."
ArrivalKind = Literal["add", "more", "remember"]
HELD_OUT = 0.2
"""Share of images that is held out if none is given."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RememberConfig(SettingGroup):
    """Settings for the memory of a model."""

    panel: ClassVar[str] = "Memory"
    hold_out: float | None = setting(
        None,
        "Share of the images of each class of five or more that is held out to measure the"
        " model; a folder val replaces it.",
        least=0,
        most=0.9,
        otherwise=f"{HELD_OUT:g}",
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class AddConfig(SettingGroup):
    """Settings for adding classes to a model."""

    panel: ClassVar[str] = "How classes are added"
    max_old_loss: float | None = setting(
        None,
        "Points of accuracy that old classes may lose, judged by images of them that are left out"
        " or by features drawn from their statistics.",
        least=0,
        most=100,
        otherwise="1; the fewer images of old classes are known, the less it binds",
    )
    init: AddInit = setting(
        "auto",
        "Initialisation of the rows of added classes; auto: discriminant, if at least half of the"
        " old classes are known, by images or statistics of at least 100 images in all; the less is"
        " known, the more it is mixed with fitted, as a head alone shows little of its classes.",
    )
    new_share: NewShare = setting(
        "auto", f"Rows other than discriminants: {NEW_SHARE[0].lower()}{NEW_SHARE[1:]}",
        above=0, most=0.99,
    )  # fmt: skip
    activation: Literal["softmax", "sigmoid"] | None = setting(
        None,
        "How logits become probabilities: by a softmax over classes, or a sigmoid of each class,"
        " as for heads trained with binary cross entropy.",
        otherwise="as the model; softmax",
    )

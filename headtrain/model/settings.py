"""The settings of `clinit add` and `clinit remember`. Nothing here imports PyTorch or NumPy."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Literal

from clinit.extract.work.options import COMPUTATION, DATA, NetworkOptions
from clinit.headtrain.heads.start.settings import MAX_OLD_LOSS, NEW_SHARE, NewShare
from clinit.setting import SettingGroup, fields_of, setting

AddInit = Literal["auto", "discriminant", "fitted", "least-square", "class-mean", "imprint"]
"""Starts whose rows need no training, and whose left-out logits are computed quickly."""
WRITES_MODELS = "Give a model that `clinit add`, `clinit remember` or `clinit export` has written."
ArrivalKind = Literal["add", "more"]
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
    activation: Literal["softmax", "sigmoid"] | None = setting(
        None,
        "What makes probabilities of logits: a softmax over classes, or a sigmoid for each class,"
        " as for heads trained with binary cross entropy.",
        otherwise="as the model; softmax",
    )


_OF_EXTRACT = fields_of(NetworkOptions)


@dataclass(frozen=True, kw_only=True, slots=True)
class Reading(SettingGroup):
    """How images are read and computed; nothing of it changes the predictions."""

    panel: ClassVar[str] = COMPUTATION
    batch_size: int = setting(64, "Images per forward pass.", least=1)
    workers: int | None = setting(
        None, _OF_EXTRACT["workers"].help, least=1, otherwise="usable CPUs"
    )
    compile: Literal["auto", "on", "off"] = setting("auto", _OF_EXTRACT["compile"].help)
    max_pixels: int = setting(
        NetworkOptions.max_pixels, _OF_EXTRACT["max_pixels"].help, least=1, panel=DATA
    )
    on_images: Callable[[int], object] = lambda done: None
    """Called after every batch with the number of finished images."""
    on_note: Callable[[str], object] = lambda note: None
    """Called with a note on `compile`, if it is `auto`."""


AS_USUAL = Reading()

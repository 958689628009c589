"""Types and values that several commands share."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

from clinit.headtrain.setting import fields_of
from clinit.headtrain.study import Device, Training

DeviceOption = Annotated[Device, typer.Option(help=fields_of(Training)["device"].setting.help)]
MaxPixels = Annotated[
    int,
    typer.Option(
        min=1, help="Largest image that is decoded, width x height; a larger one is a bad image."
    ),
]


class Split(StrEnum):
    """A split of a data set."""

    train = "train"
    val = "val"


class TransformKind(StrEnum):
    """Preprocessing without augmentation."""

    timm = "timm"
    paper = "paper"


class Dtype(StrEnum):
    """How features are stored."""

    float16 = "float16"
    float32 = "float32"


class Autocast(StrEnum):
    """Arithmetic of the forward pass."""

    off = "off"
    bfloat16 = "bfloat16"
    float16 = "float16"

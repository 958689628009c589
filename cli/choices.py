"""What options can be set to."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

MaxPixels = Annotated[
    int,
    typer.Option(
        min=1, help="Largest image that is decoded, width x height; a larger one is a bad image."
    ),
]


class Init(StrEnum):
    """Initialisation of new rows."""

    random = "random"
    class_mean = "class-mean"
    least_square = "least-square"
    zero = "zero"
    imprint = "imprint"
    lda = "lda"


class Method(StrEnum):
    """Which data a task may look at, and whether its head is trained or solved."""

    rehearsal = "rehearsal"
    naive = "naive"
    joint = "joint"
    ncm = "ncm"
    ridge = "ridge"
    lda = "lda"


class BufferSplit(StrEnum):
    """Who shares the buffer."""

    balanced = "balanced"
    sgm = "sgm"


class Mix(StrEnum):
    """What a batch is made of."""

    text = "text"
    sgm = "sgm"


class Scale(StrEnum):
    """How initialised rows are brought to the scale of the head."""

    none = "none"
    norm = "norm"
    row_norm = "row-norm"
    calibrated = "calibrated"


class ClassMean(StrEnum):
    """Which mean of a class."""

    raw = "raw"
    unit = "unit"


class InitRows(StrEnum):
    """Which rows initialisation may look at."""

    buffer = "buffer"
    new = "new"


class Weighting(StrEnum):
    """What an average over rows of several classes is."""

    class_ = "class"
    sample = "sample"


class HeadWidth(StrEnum):
    """When head rows appear."""

    grow = "grow"
    full = "full"


class Bias(StrEnum):
    """What becomes of the bias of a new row."""

    write = "write"
    keep = "keep"


class Loss(StrEnum):
    """Training loss."""

    ce = "ce"
    mse = "mse"
    sqen = "sqen"


class Precision(StrEnum):
    """Precision of the matrix products of training."""

    float32 = "float32"
    tf32 = "tf32"
    bf16 = "bf16"


class Device(StrEnum):
    """Where to compute."""

    auto = "auto"
    cuda = "cuda"
    cpu = "cpu"


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

"""What the commands of a table take with the paper's data: images, disk and time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from clinit.analysis.paper.tables import Table
    from clinit.headtrain.study import Study

_TRAIN_IMAGES = {"imagenet1k": 1_281_167, "places365": 1_803_460}
_VAL_IMAGES = 50_000 + 36_500
IMAGES = {"imagenet1k": 1_281_167 + 50_000, "places365": 1_803_460 + 36_500}
_ACTIVATION_BYTES = 2 * 49 * 384
"""Input of the last two blocks of ConvNeXtV2-Femto in float16, per image."""
_IMAGES_PER_SECOND = 40
"""Of a small backbone on two CPU cores, as measured with a ViT-tiny (benchmarks)."""
_RATE = 80e9
"""Arithmetic of two CPU cores, per second."""
_BLOCK_FLOP = 2 * 49 * 2 * 384 * 1536 * 2
"""Forward pass of the last two blocks of ConvNeXtV2-Femto, per image."""


def extraction_cost(data: str, views: int, width: int) -> str:
    """Return what an extraction takes, for people.

    Args:
        data: The data set.
        views: Random crops of each training image besides.
        width: Of the features.
    """
    images = IMAGES[data] + views * _TRAIN_IMAGES[data]
    return (
        f"{images:,} images through the backbone, {images * width * 2 / 1e9:.1f} GB;"
        f" {_time(images / _IMAGES_PER_SECOND)} on two CPU cores"
    )


def frozen_images(studies: Sequence[Study]) -> dict[tuple[object, ...], int]:
    """Return how many of the paper's images go through the frozen blocks of runs of top layers.

    By what tells the parts of the trunk cache apart: runs with the same part compute it once. Base
    classes have the training images of the first buffer, which are those of EWC's anchor besides.
    """
    found: dict[tuple[object, ...], int] = {("val",): _VAL_IMAGES}
    for study in studies:
        stream, top = study.stream, study.top
        learnt = (stream.stop_after or stream.tasks) / stream.tasks
        found["new", learnt] = round(_TRAIN_IMAGES["places365"] * learnt)
        anchor = top.ewc.samples if top is not None and stream.method == "ewc" else 0
        rows = max(stream.buffer or 0, anchor)
        found["base", stream.seed, rows] = rows
    return found


def frozen_cost(images: int) -> str:
    """Return what passes through the frozen blocks take, for people."""
    seconds = images * (1 / _IMAGES_PER_SECOND - _BLOCK_FLOP / _RATE)
    return (
        f"{images:,} images through the frozen blocks, once, {images * _ACTIVATION_BYTES / 1e9:.1f}"
        f" GB; {_time(seconds)} on two CPU cores"
    )


def hours(table: Table, studies: Sequence[Study]) -> str:
    """Return how long runs of the paper's size take on two CPU cores."""
    width = 512 if table.name == "resnet18" else 384
    total = 0.0
    for study in studies:
        stream = study.stream
        tasks = stream.stop_after or stream.tasks
        rows = 3 * stream.iterations * stream.rows_per_batch  # forward, and two products back
        rows += len(stream.evaluation_points) * _VAL_IMAGES
        total += tasks * rows * (2 * 1365 * width + (_BLOCK_FLOP if table.is_top else 0))
    return f"with the paper's data {_time(total / _RATE)} on two CPU cores"


def _time(seconds: float) -> str:
    """Return an estimate in words."""
    if seconds < 5400:
        return f"about {max(1, round(seconds / 60)):,} min"
    return f"about {seconds / 3600:,.0f} h"

"""What the commands of a table take: images, disk and time, as far as the images are known."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from clinit.cli.console import note
from clinit.cli.progress import doing

if TYPE_CHECKING:
    from clinit.analysis.paper.tables import Table
    from clinit.headtrain.study import Study

Counts = Mapping[str, Mapping[str, int]]
"""Images of each split by data set: the base classes, then the new ones."""
IMAGES: Counts = {
    "imagenet1k": {"train": 1_281_167, "val": 50_000},
    "places365": {"train": 1_803_460, "val": 36_500},
}
"""Those of the paper."""
_ACTIVATION_BYTES = 2 * 49 * 384
"""Input of the last two blocks of ConvNeXtV2-Femto in float16, per image."""
_IMAGES_PER_SECOND = 40
"""Of a small backbone on two CPU cores, as measured with a ViT-tiny (benchmarks)."""
_RATE = 80e9
"""Arithmetic of two CPU cores, per second."""
_BLOCK_FLOP = 2 * 49 * 2 * 384 * 1536 * 2
"""Forward pass of the last two blocks of ConvNeXtV2-Femto, per image."""


def count_images(caches: tuple[Path, Path] | None, roots: Mapping[str, Path | None]) -> Counts:
    """Return the images in the given caches or folders, those of the paper for what is not there.

    Raises:
        ClinitError: If a cache is damaged, or a folder does not hold the data set.
    """
    from clinit.extract.cache.read import open_cache
    from clinit.extract.dataset.scan import available_splits, scan

    counts = dict(IMAGES)
    with doing("Counting images …"):
        for data, cache in zip(IMAGES, caches or (None, None), strict=True):
            root = roots[data]
            if cache is not None and cache.is_dir():
                splits = open_cache(cache).splits
                counts[data] = {name: each.num_rows for name, each in splits.items()}
            elif cache is None and root is not None and root.is_dir():
                found = available_splits(data, root)
                counts[data] = {name: len(scan(data, root, name).manifest.table) for name in found}
            elif cache is None and root is not None:
                note(f"there is no folder {root}: its images are counted as the paper's")
    return counts


def extraction_cost(counts: Mapping[str, int], views: int, width: int) -> str:
    """Return what an extraction takes, for people.

    Args:
        counts: Images of each split.
        views: Random crops of each training image besides.
        width: Of the features.
    """
    images = sum(counts.values()) + views * counts.get("train", 0)
    return (
        f"{images:,} images through the backbone, {images * width * 2 / 1e9:.1f} GB;"
        f" {_time(images / _IMAGES_PER_SECOND)} on two CPU cores"
    )


def frozen_images(studies: Sequence[Study], counts: Counts) -> dict[tuple[object, ...], int]:
    """Return how many images go through the frozen blocks of runs of top layers.

    By what tells the parts of the trunk cache apart: runs with the same part compute it once. Base
    classes have the training images of the first buffer, which are those of EWC's anchor besides.
    """
    base, new = (counts[data].get("train", 0) for data in IMAGES)
    found: dict[tuple[object, ...], int] = {("val",): _val_images(counts)}
    for study in studies:
        stream, top = study.stream, study.top
        learnt = (stream.stop_after or stream.tasks) / stream.tasks
        found["new", learnt] = round(new * learnt)
        anchor = top.ewc.samples if top is not None and stream.method == "ewc" else 0
        rows = min(base, max(stream.buffer or 0, anchor))
        found["base", stream.seed, rows] = rows
    return found


def frozen_cost(images: int) -> str:
    """Return what passes through the frozen blocks take, for people."""
    seconds = images * (1 / _IMAGES_PER_SECOND - _BLOCK_FLOP / _RATE)
    return (
        f"{images:,} images through the frozen blocks, once, {images * _ACTIVATION_BYTES / 1e9:.1f}"
        f" GB; {_time(seconds)} on two CPU cores"
    )


def hours(table: Table, studies: Sequence[Study], counts: Counts) -> str:
    """Return how long runs with the paper's backbone and classes take on two CPU cores."""
    width = 512 if table.name == "resnet18" else 384
    total = 0.0
    for study in studies:
        stream = study.stream
        tasks = stream.stop_after or stream.tasks
        rows = 3 * stream.iterations * stream.rows_per_batch  # forward, and two products back
        rows += len(stream.evaluation_points) * _val_images(counts)
        total += tasks * rows * (2 * 1365 * width + (_BLOCK_FLOP if table.is_top else 0))
    whose = "data" if counts == IMAGES else "backbone and classes"
    return f"with the paper's {whose} {_time(total / _RATE)} on two CPU cores"


def _val_images(counts: Counts) -> int:
    return sum(each.get("val", 0) for each in counts.values())


def _time(seconds: float) -> str:
    """Return an estimate in words."""
    if seconds < 5400:
        return f"about {max(1, round(seconds / 60)):,} min"
    return f"about {seconds / 3600:,.0f} h"

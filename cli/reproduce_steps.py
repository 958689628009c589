"""The commands that make a table of the paper: which there are, what is done, what they take."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from clinit.cli.console import note
from clinit.cli.progress import doing
from clinit.errors import ClinitError, ExperimentError
from clinit.words import number_of

if TYPE_CHECKING:
    from clinit.analysis.paper.tables import Table
    from clinit.headtrain.study.study import Study


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


SIDES = {"imagenet1k": "--imagenet", "places365": "--places"}
"""The options that name their folders."""
WHERE = {
    "imagenet1k": "ImageNet-1K (ILSVRC2012: image-net.org, after registration)",
    "places365": "Places365-Standard (places2.csail.mit.edu)",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Places:
    """Where everything is read and written."""

    out: Path
    roots: Mapping[str, Path | None]
    """Folders of images by data set."""
    caches: tuple[Path, Path] | None
    """Caches of the base and the new classes, where they are given."""
    weights: Path | None
    views: int
    """Views of each training image of ImageNet-1K, for the alignment."""
    epochs: int | None
    """Passes of the alignment over its images; None: as in the recipe."""
    counts: Counts = field(default_factory=lambda: IMAGES)
    """Images of each data set, for what commands take."""

    def sides(self, table: Table) -> tuple[Path, Path]:
        """Return the caches of the base and the new classes."""
        if self.caches is not None:
            return self.caches
        folder = self.out / "caches" / ("resnet18" if table.name == "resnet18" else "femto")
        return folder / "imagenet1k", folder / "places365"

    @property
    def aligned(self) -> Path:
        """The head that is aligned with squared error; other ways to align it have other files."""
        views = "all" if self.caches is not None else str(self.views)
        epochs = "" if self.epochs is None else f"-{self.epochs}-epochs"
        return self.out / "heads" / f"mse-{views}-views{epochs}.safetensors"

    def runs(self, table: Table) -> Path:
        """Return the folder of the runs of a table."""
        return self.out / "runs" / table.runs


def digits_of(folder: Path) -> tuple[Path, Path]:
    """Return where the caches of the digits are below `--out`."""
    return folder / "digits" / "caches" / "base", folder / "digits" / "caches" / "new"


@dataclass(frozen=True, slots=True)
class Step:
    """A command of a table."""

    words: tuple[str, ...]
    """Without `clinit`."""
    is_done: bool
    cost: str
    """What it takes, for people."""

    @property
    def target(self) -> tuple[str, str]:
        """The command and what it writes: steps of two tables may have the same."""
        return self.words[0], self.words[self.words.index("--out") + 1]


def steps(
    table: Table,
    places: Places,
    overlay: Sequence[str],
    studies: Sequence[Study],
) -> Iterator[Step]:
    """Yield the commands of a table in order.

    Args:
        table: A table of the paper.
        places: Where everything is.
        overlay: Words that overlay the grids of the recipe.
        studies: The runs of the table.

    Raises:
        ExperimentError: If the aligned head that is there is of another base head.
    """
    base, new = places.sides(table)
    if places.caches is None:
        sides = zip(IMAGES, (base, new), strict=True)
        for data, folder in sides if table.runs else [*sides][:1]:
            yield _extraction(table, places, data, folder)
    if table.is_aligned:
        told = () if places.epochs is None else ("--epochs", str(places.epochs))
        words = ("align", str(base), "--config", table.recipe, "--out", str(places.aligned), *told)
        yield Step(words, _is_aligned(places.aligned, base), "minutes")
    if table.runs:
        yield _sweep(table, places, overlay, studies)


def recorded(folder: Path, studies: Sequence[Study]) -> list[Path]:
    """Return the records of studies below a folder."""
    from clinit.headtrain.record.format import find_records, read_info
    from clinit.headtrain.record.info import settings_of
    from clinit.headtrain.study.study import identity_of

    wanted = {study.identity for study in studies}
    found = find_records(folder) if folder.is_dir() else []
    return [path for path in found if identity_of(settings_of(read_info(path))) in wanted]


def check_images(steps: Sequence[Step], places: Places) -> None:
    """Check that the images are known of all that has to be extracted.

    Raises:
        ExperimentError: If they are not; it says where they are to be had.
    """
    wanted = [
        data
        for data in IMAGES
        if places.roots[data] is None
        and any(step.words[:3] == ("extract", "--dataset", data) for step in steps)
    ]
    if wanted:
        options = " ".join(f"{SIDES[data]} FOLDER" for data in wanted)
        raise ExperimentError(
            f"there are no features of {' and '.join(WHERE[data] for data in wanted)} below"
            f" {places.out / 'caches'}, and no images to compute them from",
            remedy=f"Give the images with `{options}`, or two caches with `--base CACHE --new"
            " CACHE`. `clinit reproduce --scale-down` shows the whole on handwritten digits.",
        )


def _extraction(table: Table, places: Places, data: str, folder: Path) -> Step:
    views = places.views if data == "imagenet1k" and table.is_aligned else 0
    root = places.roots[data]
    is_femto = table.name != "resnet18"
    words = [
        *("extract", "--dataset", data, "--config", table.recipe),
        *("--root", f"FOLDER_OF_{data.upper()}" if root is None else str(root)),
        *("--out", str(folder)),
        *(("--views", str(views)) if views else ()),
        *(("--weights", str(places.weights)) if is_femto and places.weights else ()),
    ]
    cost = extraction_cost(places.counts[data], views, 384 if is_femto else 512)
    return Step(tuple(words), _is_whole(folder, views), cost)


def _is_whole(folder: Path, views: int) -> bool:
    from clinit.extract.cache.read import open_cache

    try:
        cache = open_cache(folder)
    except ClinitError:
        return False
    return {"train", "val"} <= set(cache.splits) and len(cache.views) >= views


def _is_aligned(head: Path, base: Path) -> bool:
    """Return whether the aligned head is there.

    Raises:
        ExperimentError: If it was aligned from another head than that of the base cache.
    """
    from clinit.extract.cache.head import read_head
    from clinit.extract.cache.read import open_cache
    from clinit.headtrain.stream.source import head_digest

    if not head.is_file():
        return False
    facts = read_head(head).alignment or {}
    own = open_cache(base).head
    if own is None or facts.get("started_from") not in (None, head_digest(own)):
        raise ExperimentError(
            f"{head} was aligned from another head than that of {base}",
            remedy="Choose another --out for these caches, or remove that file.",
        )
    return True


def _sweep(table: Table, places: Places, overlay: Sequence[str], studies: Sequence[Study]) -> Step:
    base, new = places.sides(table)
    words = ["sweep", *overlay, "--config", table.recipe, "--base", str(base), "--new", str(new)]
    if table.is_aligned:
        words += ["--head", f"mse={places.aligned}"]
    if table.is_top:
        words += ["--top", "--trunk-cache", str(places.out / "caches" / "trunk")]
        words += ["--trunk-budget", "80GB"]
        words += ["--weights", str(places.weights)] if places.weights else []
    words += ["--out", str(places.runs(table))]
    done = len(recorded(places.runs(table), studies))
    time = hours(table, studies, places.counts)
    cost = f"{number_of(len(studies), 'run')}, {done:,} recorded; {time}"
    # Never done: where all is recorded it trains nothing, and refuses records of other data.
    return Step(tuple(words), False, cost)

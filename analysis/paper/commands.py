"""The commands that make a table of the paper: their list, their state, their settings."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from clinit.analysis.paper.numbers import paper_numbers
from clinit.analysis.paper.tables import PaperTable
from clinit.errors import ClinitError, ExperimentError
from clinit.extract.cache.head import read_head
from clinit.extract.cache.read import open_cache
from clinit.files.paths import is_file, is_folder
from clinit.headtrain.protocol.record.format import find_records, read_info
from clinit.headtrain.protocol.record.info import settings_of
from clinit.headtrain.protocol.stream.source import head_digest
from clinit.headtrain.protocol.study.study import Study, identity_of

_SCALED = {"tasks": "2", "batch_size": "64", "eval_every": "8"}
"""Reduced settings of all tables; `Table.scaled` contains the settings of each table."""
_OF_TRAINING = ("iterations", "batch_size", "eval_every")


def overlay(
    table: PaperTable, settings: Sequence[str], seeds: int | None, *, scale_down: bool
) -> list[str]:
    """Return the arguments that replace values in the grids of a recipe, the user's values last.

    Args:
        table: A table of the paper.
        settings: Arguments of the user, `field=values`.
        seeds: Number of seeds; None: as in the recipe.
        scale_down: Whether to reduce the settings.
    """
    if not table.runs:
        return []
    words = {**_SCALED, **table.scaled} if scale_down else {}
    if seeds is not None:
        words["seed"] = f"0:{seeds}"
    for each in settings:
        name, _, value = each.partition("=")
        key = name.replace("-", "_")
        words = {**_without(words, key.split(",")), key: value}
    if table.name == "first-task":  # nothing is trained
        words = _without(words, _OF_TRAINING)
    tasks = words.get("tasks", "")
    return [f"{name}={value.replace('{tasks}', tasks)}" for name, value in words.items()]


def _without(words: dict[str, str], fields: Collection[str]) -> dict[str, str]:
    """Return arguments without some fields; fields that varied together with them still vary."""
    left: dict[str, str] = {}
    for key, value in words.items():
        names = key.split(",")
        if not (kept := [index for index, name in enumerate(names) if name not in fields]):
            continue
        rows = [row.split(",") for row in value.split(";")] if len(names) > 1 else [[value]]
        told = dict.fromkeys(",".join(row[index] for index in kept) for row in rows)
        left[",".join(names[index] for index in kept)] = (";" if len(kept) > 1 else ",").join(told)
    return left


def check_places(table: PaperTable, studies: Sequence[Study]) -> None:
    """Check that every run has its own place in the table.

    Raises:
        ExperimentError: If a run has no place, or two runs have the same place.
    """
    if not (known := {*paper_numbers(table).select("method", "loss", "init").rows()}):
        return
    seen: dict[tuple[object, ...], Study] = {}
    for study in studies:
        stream = study.stream
        key = (stream.method, study.training.loss, study.start.init)
        if key not in known:
            raise ExperimentError(
                f"{table.name} has no line for {', '.join(map(str, key))}",
                remedy="Leave it out of --set; `clinit sweep` trains anything.",
            )
        other = seen.setdefault((*key, stream.iterations, stream.buffer, stream.seed), study)
        if other is not study:
            values = other.values()
            names = [name for name, value in study.values().items() if value != values[name]]
            raise ExperimentError(
                f"two runs of {table.name} have the same place: they differ in {', '.join(names)}",
                remedy="Give one value with --set.",
            )


SIDES = {"imagenet1k": "--imagenet", "places365": "--places"}
"""The option for the image folder of each data set."""
WHERE = {
    "imagenet1k": "ImageNet-1K (ILSVRC2012: image-net.org, after registration)",
    "places365": "Places365-Standard (places2.csail.mit.edu)",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Places:
    """Paths of everything that a reproduction reads and writes."""

    out: Path
    roots: Mapping[str, Path | None]
    """Folders of images by data set."""
    caches: tuple[Path, Path] | None
    """Caches of the base and the new classes, if the user gave them."""
    weights: Path | None
    views: int
    """Number of views of each training image of ImageNet-1K, for the alignment."""
    epochs: int | None
    """Number of passes of the alignment over its images; None: as in the recipe."""

    def sides(self, table: PaperTable) -> tuple[Path, Path]:
        """Return the caches of the base and the new classes."""
        if self.caches is not None:
            return self.caches
        folder = self.out / "caches" / ("resnet18" if table.name == "resnet18" else "femto")
        return folder / "imagenet1k", folder / "places365"

    @property
    def aligned(self) -> Path:
        """File of the head aligned with squared error; the name contains views and epochs."""
        views = "all" if self.caches is not None else str(self.views)
        epochs = "" if self.epochs is None else f"-{self.epochs}-epochs"
        return self.out / "heads" / f"mse-{views}-views{epochs}.safetensors"

    def runs(self, table: PaperTable) -> Path:
        """Return the folder of the runs of a table."""
        return self.out / "runs" / table.runs


Words = tuple[str, ...]
"""Words of a command without `clinit`."""


def steps(table: PaperTable, places: Places, overlay: Sequence[str]) -> Iterator[Words]:
    """Yield the commands of a table that are left, in order.

    Args:
        table: A table of the paper.
        places: Paths of the reproduction.
        overlay: Arguments that replace values in the grids of the recipe.

    Raises:
        ExperimentError: If the existing aligned head belongs to another base head.
    """
    base, new = places.sides(table)
    if places.caches is None:
        sides = zip(SIDES, (base, new), strict=True)
        for data, folder in sides if table.runs else [*sides][:1]:
            yield from _extraction(table, places, data, folder)
    if table.is_aligned and not _is_aligned(places.aligned, base):
        few = () if places.epochs is None else ("--epochs", str(places.epochs))
        to = ("--config", table.recipe, "--out", str(places.aligned))
        yield ("head", "align", str(base), *to, *few)
    if not table.runs:
        return
    words = ("sweep", *overlay, "--config", table.recipe, "--base", str(base), "--new", str(new))
    if table.is_aligned:
        words += ("--head", f"mse={places.aligned}")
    if table.is_top:
        words += ("--top", "--trunk-cache", str(places.out / "caches" / "trunk"))
        words += ("--trunk-budget", "80GB")
        words += ("--weights", str(places.weights)) if places.weights else ()
    # Always called: if all runs are recorded it trains nothing, but refuses records of other data.
    yield (*words, "--out", str(places.runs(table)))


def _extraction(table: PaperTable, places: Places, data: str, folder: Path) -> Iterator[Words]:
    """Yield the command that makes a cache, unless there is a cache."""
    views = places.views if data == "imagenet1k" and table.is_aligned else 0
    with suppress(ClinitError):
        cache = open_cache(folder)
        if {"train", "val"} <= set(cache.splits) and len(cache.views) >= views:
            return
    is_femto = table.name != "resnet18"
    yield (
        *("extract", "--dataset", data, "--config", table.recipe),
        *("--root", str(places.roots[data]), "--out", str(folder)),
        *(("--views", str(views)) if views else ()),
        *(("--weights", str(places.weights)) if is_femto and places.weights else ()),
    )


def recorded(folder: Path, studies: Sequence[Study]) -> list[Path]:
    """Return the records of studies below a folder."""
    wanted = {study.identity for study in studies}
    found = find_records(folder) if is_folder(folder) else []
    return [path for path in found if identity_of(settings_of(read_info(path))) in wanted]


def check_images(commands: Iterable[Words], places: Places) -> None:
    """Check that the user gave the images of all missing caches.

    Raises:
        ExperimentError: If images are missing; the message names the options for them.
    """
    asked = {words[2] for words in commands if words[0] == "extract"}
    wanted = [data for data in SIDES if places.roots[data] is None and data in asked]
    if wanted:
        options = " ".join(f"{SIDES[data]} FOLDER" for data in wanted)
        raise ExperimentError(
            f"there are no features of {' and '.join(WHERE[data] for data in wanted)} below"
            f" {places.out / 'caches'}, and no images to compute them from",
            remedy=f"Give the images with `{options}`, or two caches with `--base CACHE --new"
            " CACHE`. `clinit reproduce --scale-down` shows the whole on handwritten digits.",
        )


def _is_aligned(head: Path, base: Path) -> bool:
    """Return whether the aligned head exists.

    Raises:
        ExperimentError: If it was aligned from another head than the head of the base cache.
    """
    if not is_file(head):
        return False
    facts = read_head(head).alignment or {}
    own = open_cache(base).head
    if own is None or facts.get("started_from") not in (None, head_digest(own)):
        raise ExperimentError(
            f"{head} was aligned from another head than the one in {base}",
            remedy="Choose another --out for these caches, or remove that file.",
        )
    return True

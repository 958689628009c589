"""Build a manifest from a folder of images: find the layout, list the images, check counts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import polars as pl

from clinit.errors import ManifestError
from clinit.extract.dataset import layouts
from clinit.extract.dataset.class_folders import LABELS, find_classes
from clinit.extract.dataset.containers import find_containers
from clinit.extract.dataset.known import (
    AS_TOLD,
    FOLDER,
    HUGGINGFACE,
    SPLITS,
    TEST,
    WEBDATASET,
    ColumnNames,
    Dataset,
    check_known,
    read_dataset,
)
from clinit.extract.dataset.label_table import read_labelled
from clinit.extract.dataset.layouts import Found
from clinit.extract.dataset.manifest import CONTAINED_SCHEMA, SCHEMA, Manifest, is_contained
from clinit.extract.dataset.tree import HEIC_READER, Tree
from clinit.files.text import TextFileError, read_text
from clinit.observer import Doing, Noted, Observer, Warned, ignore
from clinit.words import examples, number_of, printable

LAYOUTS: dict[str, Callable[[layouts.Search], layouts.Reader]] = {
    "class-folders": partial(layouts.find_class_folders, lambda name: [name]),
    # Nested folders, or flat ones with `-` for `/`; no class name contains a hyphen itself.
    "places-easy": partial(layouts.find_class_folders, lambda name: [name, name.replace("/", "-")]),
    "places-original-train": partial(layouts.find_class_folders, lambda n: [f"{n[0]}/{n}"]),
    "imagenet-kaggle": partial(layouts.find_listed, layouts.STEM, layouts.kaggle_labels),
    "imagenet-devkit": partial(layouts.find_listed, layouts.NUMBER, layouts.devkit_labels),
    "places-original-val": partial(layouts.find_listed, layouts.FILE_NAME, layouts.places_labels),
}
"""Layouts of data sets on disk, by their names in the TOML files."""

CONVERT = "Convert these photographs to JPEG (ImageMagick: `magick mogrify -format jpg FILE…`)."
_EXPECTED = {
    FOLDER: "Give a folder with train/<class>/ and val/<class>/ or test/<class>/, or with class"
    " folders alone, taken as train; archives unpacked, images ending in .jpg, .png or the like",
    WEBDATASET: "Give a folder with .tar files, not compressed, and each image in them a class:"
    " next to key.jpg a key.cls with a number or a name, a key.json with `label`, or a key.txt",
    HUGGINGFACE: "Give a folder with .parquet files of images (`Dataset.to_parquet` writes them),"
    " and name the column of their classes with `--label-column` of `clinit manifest build`",
}
"""Requirements of data sets without a TOML file, for messages."""


@dataclass(frozen=True, slots=True, eq=False)
class Scan:
    """The manifest of a split, and warnings about its folder."""

    manifest: Manifest
    warnings: tuple[str, ...]
    layout: str = ""
    notes: tuple[str, ...] = ()
    groups: pl.DataFrame | None = None
    """Paths and groups of images, if a table of labels contains groups."""

    def tell(self, observer: Observer) -> None:
        """Tell of each warning and each note."""
        for event in (*map(Warned, self.warnings), *map(Noted, self.notes)):
            observer(event)


def scan(
    dataset: str,
    root: Path,
    split: str,
    *,
    strict: bool = False,
    columns: ColumnNames = AS_TOLD,
    labels: str | None = None,
) -> Scan:
    """List the images of a split under `root`.

    Args:
        dataset: A known data set, `folder` for any tree of class folders, `webdataset` for tar
            shards, or `huggingface` for Parquet files.
        root: The folder of the data set.
        split: "train", "val", or "test": the test images, which become the split val.
        strict: Whether to raise an error instead of returning warnings.
        columns: Columns of Parquet files.
        labels: For `folder`, a table of labels (`read_labelled`); None means class folders.

    Raises:
        ManifestError: If the data set is unknown, its files are missing or cannot be read, a link
            leaves the root, or `strict` is set and there are warnings.
    """
    tree = Tree.at(root)
    return _scanned(_find(dataset, tree, split, columns, labels), tree, split, strict=strict)


def _scanned(found: Found, tree: Tree, split: str, *, strict: bool) -> Scan:
    description, dataset = found.description, found.description.name
    if split not in found.readers:
        raise found.missing(split)
    kind, reader = found.readers[split]
    listing = reader()
    manifest = _manifest(description, split, listing)
    groups = None
    if "group" in listing.table.columns and listing.table["group"].count():
        groups = listing.table.select("path", "group")
    if manifest.table.is_empty():
        raise ManifestError(
            f"no {split} image of {dataset} in {printable(tree.root)} (layout {kind}): "
            + "; ".join(listing.warnings or ("its folders are empty",)),
            remedy=f"Run {HEIC_READER}, then the same command again."
            if HEIC_READER in "".join(listing.warnings)
            else CONVERT
            if "converted" in "".join(listing.warnings)
            else f"{_EXPECTED.get(dataset, 'Unpack the archives of the data set')}.",
        )
    counts = _count_warnings(description, manifest, split)
    warnings = (*description.warnings, *listing.warnings, *counts)
    if strict and warnings:
        raise ManifestError(
            f"{printable(tree.root)} is not a complete {split} split of {dataset}: "
            + "; ".join(warnings),
            remedy="Complete the folder, or leave out --strict to accept it as it is.",
        )
    return Scan(manifest, warnings, kind, (*description.notes, *listing.notes), groups)


def scan_splits(
    dataset: str,
    root: Path,
    splits: Sequence[str] = (),
    *,
    strict: bool = False,
    labels: str | None = None,
    observer: Observer = ignore,
) -> Iterator[Scan]:
    """Scan splits under `root`; yield one result per split.

    Args:
        dataset: As in `scan`, as are `root`, `strict` and the errors.
        root: The folder of the data set.
        splits: The splits to scan; if empty, all existing splits.
        strict: Whether to raise an error instead of returning warnings.
        labels: As in `scan`.
        observer: Told which split is scanned.
    """
    told, tree = set[str](), Tree.at(root)
    source = _find(dataset, tree, TEST if TEST in splits else "val", AS_TOLD, labels)
    # If no split exists, scanning train raises an error that names the expected files.
    for split in splits or [each for each in SPLITS if each in source.readers] or ("train",):
        observer(Doing(f"Scanning {split} …"))
        found = _scanned(source, tree, split, strict=strict)
        warnings, notes = (
            tuple(text for text in texts if text not in told)
            for texts in (found.warnings, found.notes)
        )
        told.update(warnings, notes)
        yield replace(found, warnings=warnings, notes=notes)


def without(scans: Iterable[Scan], file: Path) -> list[Scan]:
    """Leave out the images that a file lists: their paths below the root, one per line.

    Raises:
        ManifestError: If the file cannot be read, or lists an image that is not there.
    """
    scans, names = list(scans), paths_in(file)
    there = {path for each in scans for path in each.manifest.table["path"]}
    if strangers := [name for name in names if name not in there]:
        known = next(iter(sorted(there)), "heron/1.jpg")
        raise ManifestError(
            f"{number_of(len(strangers), 'line')} of {file} not the path of an image, such as"
            f" {known} ({examples(strangers)})",
            remedy=_LIST,
        )
    return [replace(each, manifest=each.manifest.without(names)) for each in scans]


def paths_in(file: Path) -> list[str]:
    """Return the lines of a list of images.

    Raises:
        ManifestError: If the file cannot be read.
    """
    try:
        return [line for line in read_text(file).split("\n") if line]
    except TextFileError as error:
        raise ManifestError(f"cannot read {file}: {error}", remedy=_LIST) from error


_LIST = "Give a text file with the paths of images below the folder of images, one per line."


def available_splits(dataset: str, root: Path, labels: str | None = None) -> tuple[str, ...]:
    """Return which of "train" and "val" exist under `root`, without opening image files.

    Raises:
        ManifestError: If the data set is unknown, or `root` cannot be read.
    """
    found = _find(dataset, Tree.at(root), "val", AS_TOLD, labels).readers
    return tuple(split for split in SPLITS if split in found)


def _find(dataset: str, tree: Tree, split: str, columns: ColumnNames, labels: str | None) -> Found:
    """Find a data set; `split` is train, val, or test, which takes the place of val."""
    if split not in (*SPLITS, TEST):
        raise ValueError(f"split must be one of {', '.join((*SPLITS, TEST))}, got {split!r}")
    check_known(dataset)
    if labels is not None and dataset != FOLDER:
        raise ManifestError(
            f"--labels is for images of the data set `{FOLDER}`, not of {dataset}",
            remedy=f"Give `{FOLDER}` as the data set, or leave out --labels.",
        )
    if labels is not None:
        return read_labelled(tree, labels, split)

    def missing(described: Dataset, split: str) -> ManifestError:
        return _nothing_fits(tree, described, split, reasons.get(split, []))

    reasons = dict[str, list[str]]()
    if dataset in (WEBDATASET, HUGGINGFACE):
        reasons = {each: [f"{dataset}: no file of {each}"] for each in (*SPLITS, TEST)}
        return find_containers(dataset, tree, columns, split, missing)
    if dataset != FOLDER and split == TEST:
        raise ManifestError(
            f"{dataset} has no test images with labels; results are measured on its split val",
            remedy="Give --split val.",
        )
    description = find_classes(tree, split) if dataset == FOLDER else read_dataset(dataset)
    readers = dict[str, tuple[str, layouts.Reader]]()
    for each in ("train", TEST if split == TEST else "val"):
        for layout in description.layouts:
            try:
                search = layouts.Search(tree, description, layout, each)
                readers[each] = layout.kind, LAYOUTS[layout.kind](search)
                break
            except layouts.DoesNotFitError as error:
                if each in layout.folders:
                    reasons.setdefault(each, []).append(f"{layout.kind}: {error}")
    return Found(description, readers, partial(missing, description))


def _nothing_fits(tree: Tree, dataset: Dataset, split: str, reasons: list[str]) -> ManifestError:
    images = tree.images(".", deep=False).paths if not dataset.classes else []
    if dataset.name == FOLDER and images:
        return ManifestError(
            f"{printable(tree.root)} contains images ({printable(min(images))}) but no class"
            " folder",
            remedy="If this is the folder of one class, give the folder that contains it;"
            f" or {LABELS}.",
        )
    top = tree.top()
    if dataset.name == FOLDER and not top:
        return ManifestError(
            f"{printable(tree.root)} is empty",
            remedy="Give a folder that contains a folder of images per class (photos/heron/1.jpg).",
        )
    found = ", ".join(map(printable, top[:8])) or "nothing"
    if len(top) > 8:
        found += f" and {len(top) - 8:,} more"
    looked_for = "; ".join(reasons or [f"class-folders: no {split}/<class>/"])
    other = (
        f"Give the folder that contains these (`clinit manifest show {dataset.name}` lists them),"
        f" or read class folders of other names as `{FOLDER}`"
    )
    return ManifestError(
        f"no {split} split of {dataset.name} in {printable(tree.root)}; looked for {looked_for};"
        f" found {found}",
        remedy=f"{_EXPECTED.get(dataset.name, other)}. Tar shards are read as `{WEBDATASET}`,"
        f" Parquet files as `{HUGGINGFACE}`.",
    )


def _manifest(dataset: Dataset, split: str, listing: layouts.Listing) -> Manifest:
    """Return the manifest of a split; test images become the split val."""
    names = pl.Series("class_name", dataset.classes, dtype=pl.String)
    schema, order = SCHEMA, ("label", "path")
    if is_contained(listing.table):
        schema, order = CONTAINED_SCHEMA, ("container", "position")
    table = listing.table.sort(order)
    table = table.with_columns(names.gather(table["label"])).select(schema.names())
    return Manifest(dataset.name, "val" if split == TEST else split, dataset.classes, table)


def _count_warnings(dataset: Dataset, manifest: Manifest, split: str) -> Iterator[str]:
    found, expected = len(manifest.table), dataset.images.get(split)
    if expected is not None and found != expected:
        difference = f"{abs(expected - found):,} {'missing' if found < expected else 'too many'}"
        yield f"{found:,} images in {split}, expected {expected:,} ({difference})"
    if empty := manifest.empty_classes:
        yield (
            f"{len(empty):,} of {len(dataset.classes):,} classes have no image in"
            f" {split} (for example {empty[0]})"
        )

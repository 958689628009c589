"""Build a manifest from a folder of images: find the layout, list the images, check counts."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import polars as pl

from clinit.errors import ManifestError
from clinit.extract.dataset import layouts
from clinit.extract.dataset.class_folders import LABELS, find_classes
from clinit.extract.dataset.container_layouts import container_splits, read_containers
from clinit.extract.dataset.known import (
    AS_TOLD,
    FOLDER,
    HUGGINGFACE,
    SPLITS,
    TEST,
    WEBDATASET,
    Columns,
    Dataset,
    Layout,
    check_known,
    read_dataset,
)
from clinit.extract.dataset.label_table import read_labelled
from clinit.extract.dataset.manifest import CONTAINED_SCHEMA, SCHEMA, Manifest, is_contained
from clinit.extract.dataset.tree import Tree
from clinit.words import printable

LAYOUTS: dict[str, Callable[[layouts.Search], layouts.Reader]] = {
    "class-folders": partial(layouts.find_class_folders, lambda name: [name]),
    # Nested folders, or flat ones with `-` for `/`; no class name contains a hyphen itself.
    "places-easy": partial(layouts.find_class_folders, lambda name: [name, name.replace("/", "-")]),
    "places-original-train": partial(
        layouts.find_class_folders, lambda name: [f"{name[0]}/{name}"]
    ),
    "imagenet-kaggle": partial(layouts.find_listed, layouts.STEM, layouts.kaggle_labels),
    "imagenet-devkit": partial(layouts.find_listed, layouts.NUMBER, layouts.devkit_labels),
    "places-original-val": partial(layouts.find_listed, layouts.FILE_NAME, layouts.places_labels),
}
"""Layouts of data sets on disk, by their names in the TOML files."""

CONVERT = (
    "Convert these photographs to JPEG, such as with ImageMagick:"
    " `magick mogrify -format jpg CLASS/*.heic`."
)
_EXPECTED = {
    FOLDER: "Give a folder with train/<class>/ and val/<class>/ or test/<class>/, or with class"
    " folders alone, which are taken as train; archives must be unpacked",
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

    def tell(self, warn: Callable[[str], object], note: Callable[[str], object]) -> None:
        """Call `warn` with each warning, and `note` with each note."""
        for text in self.warnings:
            warn(text)
        for text in self.notes:
            note(text)


def scan(
    dataset: str,
    root: Path | Tree,
    split: str,
    *,
    strict: bool = False,
    columns: Columns = AS_TOLD,
    labels: str | None = None,
) -> Scan:
    """List the images of a split under `root`.

    Args:
        dataset: A known data set, `folder` for any tree of class folders, `webdataset` for tar
            shards, or `huggingface` for Parquet files.
        root: The folder of the data set, or its tree.
        split: "train", "val", or "test": the test images, which become the split val.
        strict: Whether to raise an error instead of returning warnings.
        columns: Columns of Parquet files.
        labels: For `folder`, a table of labels (`read_labelled`); None means class folders.

    Raises:
        ManifestError: If the data set is unknown, its files are missing or cannot be read, a link
            leaves the root, or `strict` is set and there are warnings.
    """
    kind = dataset if labels is None else "label-table"
    tree = _opened(dataset, root, split)
    if labels is not None:
        description, listing = _labelled(dataset, tree, split, labels)
    elif dataset in (WEBDATASET, HUGGINGFACE):
        description, found = read_containers(dataset, tree, columns, split)
        if found is None:
            raise _nothing_fits(tree, description, split, [f"{kind}: no file of {split}"])
        listing = found
    else:
        description = _described(dataset, tree, split)
        fitting, reasons = _try_layouts(tree, description, split)
        if fitting is None:
            raise _nothing_fits(tree, description, split, reasons)
        layout, reader = fitting
        kind, listing = layout.kind, reader()
    manifest = _manifest(description, split, listing)
    groups = None
    if "group" in listing.table.columns and listing.table["group"].count():
        groups = listing.table.select("path", "group")
    if manifest.table.is_empty():
        raise ManifestError(
            f"no {split} image of {dataset} in {printable(tree.root)} (layout {kind}): "
            + "; ".join(listing.warnings or ("its folders are empty",)),
            remedy=CONVERT
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
    doing: Callable[[str], AbstractContextManager[object]] = lambda words: nullcontext(),
) -> Iterator[Scan]:
    """Scan splits under `root`; yield one result per split.

    Args:
        dataset: As in `scan`, as are `root`, `strict` and the errors.
        root: The folder of the data set.
        splits: The splits to scan; if empty, all existing splits.
        strict: Whether to raise an error instead of returning warnings.
        labels: As in `scan`.
        doing: Shows a text while a split is scanned.
    """
    told, tree = set[str](), Tree.at(root)
    # If no split exists, scanning train raises an error that names the expected files.
    for split in splits or available_splits(dataset, tree, labels) or ("train",):
        with doing(f"Scanning {split} …"):
            found = scan(dataset, tree, split, strict=strict, labels=labels)
        warnings, notes = (
            tuple(text for text in texts if text not in told)
            for texts in (found.warnings, found.notes)
        )
        told.update(warnings, notes)
        yield replace(found, warnings=warnings, notes=notes)


def available_splits(dataset: str, root: Path | Tree, labels: str | None = None) -> tuple[str, ...]:
    """Return which of "train" and "val" exist under `root`, without opening image files.

    Raises:
        ManifestError: If the data set is unknown, `root` cannot be read, or a download of the Hub
            contains several revisions.
    """
    tree = _opened(dataset, root, "train")
    if dataset in (WEBDATASET, HUGGINGFACE):
        return tuple(container_splits(dataset, tree))
    if labels is not None:
        found = read_labelled(tree, labels).splits
        return tuple(split for split in SPLITS if split in found)
    description = _described(dataset, tree, "train")
    return tuple(split for split in SPLITS if _try_layouts(tree, description, split)[0])


def _opened(dataset: str, root: Path | Tree, split: str) -> Tree:
    if split not in (*SPLITS, TEST):
        raise ValueError(f"split must be one of {', '.join((*SPLITS, TEST))}, got {split!r}")
    check_known(dataset)
    return root if isinstance(root, Tree) else Tree.at(root)


def _described(dataset: str, tree: Tree, split: str) -> Dataset:
    if dataset == FOLDER:
        found = find_classes(tree, split)
        return Dataset(
            name=FOLDER,
            title="this folder",
            classes=found.classes,
            layouts=(Layout(kind="class-folders", folders=found.folders),),
            warnings=found.warnings,
            notes=found.notes,
        )
    if split == TEST:
        raise ManifestError(
            f"{dataset} has no test images with labels; results are measured on its split val",
            remedy="Give --split val.",
        )
    return read_dataset(dataset)


def _labelled(dataset: str, tree: Tree, split: str, labels: str) -> tuple[Dataset, layouts.Listing]:
    if dataset != FOLDER:
        raise ManifestError(
            f"--labels is for images of the data set `{FOLDER}`, not of {dataset}",
            remedy=f"Give `{FOLDER}` as the data set, or leave out --labels.",
        )
    found = read_labelled(tree, labels, split)
    if split not in found.splits:
        raise ManifestError(
            f"{labels} labels no {split} image in {printable(tree.root)}"
            f" (splits with images: {', '.join(found.splits) or 'none'})"
            + "".join(f"; {each}" for each in found.warnings),
            remedy="Check that the paths in the table start in this folder, and its splits.",
        )
    listing = layouts.Listing(
        found.splits[split],
        (*found.warnings, *layouts.file_warnings([found.images])),
        found.notes,
    )
    return Dataset(name=FOLDER, title="this folder", classes=found.classes, layouts=()), listing


def _try_layouts(
    tree: Tree, dataset: Dataset, split: str
) -> tuple[tuple[Layout, layouts.Reader] | None, list[str]]:
    """Return the first layout that fits, with its reader, and why earlier layouts do not fit."""
    reasons: list[str] = []
    for layout in dataset.layouts:
        search = layouts.Search(tree, dataset, layout, split)
        try:
            return (layout, LAYOUTS[layout.kind](search)), reasons
        except layouts.DoesNotFitError as error:
            if split in layout.folders:
                reasons.append(f"{layout.kind}: {error}")
    return None, reasons


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
    contained = is_contained(listing.table)
    table = listing.table.sort(("container", "position") if contained else ("label", "path"))
    return Manifest(
        dataset.name,
        "val" if split == TEST else split,
        dataset.classes,
        table.with_columns(names.gather(table["label"])).select(
            (CONTAINED_SCHEMA if contained else SCHEMA).names()
        ),
    )


def _count_warnings(dataset: Dataset, manifest: Manifest, split: str) -> tuple[str, ...]:
    found, expected = len(manifest.table), dataset.images.get(split)
    warnings: list[str] = []
    if expected is not None and found != expected:
        difference = f"{abs(expected - found):,} {'missing' if found < expected else 'too many'}"
        warnings.append(f"{found:,} images in {split}, expected {expected:,} ({difference})")
    empty = manifest.class_counts().filter(pl.col("images") == 0)["class_name"]
    if len(empty):
        warnings.append(
            f"{len(empty):,} of {len(dataset.classes):,} classes have no image in"
            f" {split} (for example {empty[0]})"
        )
    return tuple(warnings)

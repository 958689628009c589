"""From a folder of images to a manifest: find the layout, read it, check the counts."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import polars as pl

from clinit.errors import ManifestError
from clinit.extract.dataset.container_layouts import (
    describe_parquet,
    describe_tar,
    find_parquet,
    find_tar,
    parquet_splits,
    tar_splits,
)
from clinit.extract.dataset.containers import split_folders
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
    read_dataset,
)
from clinit.extract.dataset.layouts import (
    FILE_NAME,
    NUMBER,
    STEM,
    DoesNotFitError,
    Listing,
    Reader,
    Search,
    devkit_labels,
    find_class_folders,
    find_listed,
    kaggle_labels,
    places_labels,
)
from clinit.extract.dataset.manifest import CONTAINED_SCHEMA, SCHEMA, Manifest, is_contained
from clinit.extract.dataset.tree import Tree
from clinit.words import printable

LAYOUTS: dict[str, Callable[[Search], Reader]] = {
    "class-folders": partial(find_class_folders, lambda name: [name]),
    # No name holds a hyphen of its own; nested folders are taken as well.
    "places-easy": partial(find_class_folders, lambda name: [name, name.replace("/", "-")]),
    "places-original-train": partial(find_class_folders, lambda name: [f"{name[0]}/{name}"]),
    "imagenet-kaggle": partial(find_listed, STEM, kaggle_labels),
    "imagenet-devkit": partial(find_listed, NUMBER, devkit_labels),
    "places-original-val": partial(find_listed, FILE_NAME, places_labels),
    WEBDATASET: find_tar,
    HUGGINGFACE: find_parquet,
}
"""How data sets lie on the disk, by the names used in the TOML files."""


@dataclass(frozen=True, slots=True, eq=False)
class Scan:
    """The manifest of a split and what was odd about its folder."""

    manifest: Manifest
    warnings: tuple[str, ...]
    layout: str = ""
    """Name of the layout that was found."""


def scan(
    dataset: str,
    root: Path,
    split: str,
    *,
    strict: bool = False,
    columns: Columns = AS_TOLD,
) -> Scan:
    """List the images of a split under `root`.

    Args:
        dataset: A known data set, `folder` for any tree of class folders, `webdataset` for tar
            shards, or `huggingface` for Parquet files.
        root: The folder of the data set.
        split: "train", "val", or "test": the test images, which become the split val.
        strict: Turn warnings into an error.
        columns: Columns of Parquet files.

    Raises:
        ManifestError: If the data set is unknown, its files are not found or cannot be read,
            a link leaves the root, or, under `strict`, anything is to be warned of.
    """
    tree, description = _open(dataset, root, split, columns)
    layout, reader = _find(tree, description, split)
    listing = reader()
    manifest = _manifest(description, split, listing)
    if manifest.table.is_empty():
        places = "files" if dataset in (WEBDATASET, HUGGINGFACE) else "folders"
        raise ManifestError(
            f"no {split} image of {dataset} in {printable(root)}: its {places} (layout"
            f" {layout.kind}) are there but hold no image; "
            + "; ".join(listing.warnings or ("they are empty",)),
            remedy=f"{_UNPACKED.get(dataset, 'Unpack the archives of the data set')}, then run the"
            " same command again.",
        )
    warnings = (*listing.warnings, *_count_warnings(description, manifest, split))
    if strict and warnings:
        raise ManifestError(
            f"{printable(root)} is not a complete {split} split of {dataset}: "
            + "; ".join(warnings),
            remedy="Complete the folder, or leave out --strict to go on with what is there.",
        )
    return Scan(manifest, warnings, layout.kind)


def available_splits(dataset: str, root: Path) -> tuple[str, ...]:
    """Return which of "train" and "val" are under `root`, by names: no image or file is opened.

    Raises:
        ManifestError: If the data set is unknown or `root` cannot be read, or, of images in
            containers, one would be read twice.
    """
    if dataset in _CONTAINERS_OF:
        return tuple(_CONTAINERS_OF[dataset](Tree.at(root)))
    tree, description = _open(dataset, root, "train")
    return tuple(split for split in SPLITS if _try_layouts(tree, description, split)[0])


def _open(
    dataset: str,
    root: Path,
    split: str,
    columns: Columns = AS_TOLD,
) -> tuple[Tree, Dataset]:
    if split not in (*SPLITS, TEST):
        raise ValueError(f"split must be one of {', '.join((*SPLITS, TEST))}, got {split!r}")
    known = None if dataset in _SELF_DESCRIBED else read_dataset(dataset)
    tree = Tree.at(root)
    if known is not None and split == TEST:
        raise ManifestError(
            f"{dataset} has no test images with labels: results are reported on its split val",
            remedy="Give --split val.",
        )
    return tree, known or _SELF_DESCRIBED[dataset](tree, columns, split)


def _folder_dataset(tree: Tree, columns: Columns, split: str) -> Dataset:
    """Describe a tree by its own class folders.

    The classes are those of both splits, so that a label means the same in both.
    """
    folders = _folders_of_splits(tree, split)
    if folders:
        classes = sorted({each for first, *_ in folders.values() for each in tree.folders(first)})
    else:
        folders, classes = {"train": (".",)}, tree.folders(".")
    return Dataset(
        name=FOLDER,
        title="this folder",
        classes=tuple(classes),
        layouts=(Layout(kind="class-folders", folders=folders),),
    )


def _folders_of_splits(tree: Tree, split: str) -> dict[str, tuple[str, ...]]:
    """Return the folders that may be each split; none where the tree holds class folders alone.

    A folder named train is a split only if it holds folders: it may be a class of vehicles. One
    named test or valid is a split only beside train, or where it is asked for.
    """
    named = [name for name in tree.folders(".") if split_folders([name], split)]
    found = split_folders([name for name in named if tree.folders(name)], split)
    if "train" in found or split == TEST:
        return found
    return {"val": ("val",)} if "val" in found.get("val", ()) else {}


_SELF_DESCRIBED: dict[str, Callable[[Tree, Columns, str], Dataset]] = {
    FOLDER: _folder_dataset,
    WEBDATASET: describe_tar,
    HUGGINGFACE: describe_parquet,
}

_CONTAINERS_OF: dict[str, Callable[[Tree], Mapping[str, object]]] = {
    WEBDATASET: tar_splits,
    HUGGINGFACE: parquet_splits,
}
"""Splits by the names of files; to describe such a data set each of them is read."""


_CONTAINERS = f"tar shards as `{WEBDATASET}`, Parquet files as `{HUGGINGFACE}`"
_EXPECTED = {
    FOLDER: "a folder with train/<class>/ and val/<class>/ or test/<class>/, or with class folders"
    f" alone, which are taken as train (`clinit extract` reads {_CONTAINERS})",
    WEBDATASET: "a folder with .tar files whose names or folders have train, val or test in them,"
    " or none of these words, then all are taken as train",
    HUGGINGFACE: "a folder with .parquet files whose names or folders have train, validation or"
    " test in them, or none of these words, then all are taken as train",
}


_UNPACKED = {
    FOLDER: f"Unpack the archives of the data set, or read {_CONTAINERS}",
    WEBDATASET: "Give each image a class: beside key.jpg a key.cls with a number or a name, a"
    " key.json with `label`, or a key.txt",
    HUGGINGFACE: "Name the column of the classes with `--label-column` of `clinit manifest build`",
}
"""What to do where files are there and no image with a label."""


def _try_layouts(
    tree: Tree, dataset: Dataset, split: str
) -> tuple[tuple[Layout, Reader] | None, list[str]]:
    """Return the first layout that fits with its reader, and why the ones before do not."""
    reasons: list[str] = []
    for layout in dataset.layouts:
        try:
            return (layout, LAYOUTS[layout.kind](Search(tree, dataset, layout, split))), reasons
        except DoesNotFitError as error:
            if split in layout.folders:
                reasons.append(f"{layout.kind}: {error}")
    return None, reasons


def _find(tree: Tree, dataset: Dataset, split: str) -> tuple[Layout, Reader]:
    fitting, reasons = _try_layouts(tree, dataset, split)
    if fitting is not None:
        return fitting
    _refuse_one_class(tree, dataset)
    top = tree.top()
    found = ", ".join(map(printable, top[:8])) or "nothing"
    if len(top) > 8:
        found += f" and {len(top) - 8:,} more"
    looked_for = "; ".join(reasons or [f"class-folders: no {split}/<class>/"])
    raise ManifestError(
        f"no {split} split of {dataset.name} in {printable(tree.root)}; looked for {looked_for};"
        f" and found {found}",
        remedy=_where_to_look(dataset),
    )


def _refuse_one_class(tree: Tree, dataset: Dataset) -> None:
    """Refuse the folder of a single class, which holds images itself, in place of its parent."""
    if dataset.name != FOLDER or dataset.classes:
        return
    found = tree.images(".", deep=False)
    if found.paths:
        parent = os.path.normpath(tree.root / "..")
        if "train" in split_folders([Path(parent).absolute().name], "train"):
            parent = os.path.normpath(Path(parent, ".."))
        raise ManifestError(
            f"{printable(tree.root)} holds images ({printable(min(found.paths))}) and no folder of"
            " a class",
            remedy=f"If it is the folder of one class, give its parent: {printable(parent)}. Each"
            " class needs a folder of its own.",
        )


def _where_to_look(dataset: Dataset) -> str:
    if dataset.name in _EXPECTED:
        return f"Give {_EXPECTED[dataset.name]}."
    return (
        f"Give the folder that holds these (`clinit manifest show {dataset.name}` lists"
        f" them), or read class folders of other names as `{FOLDER}`, {_CONTAINERS}."
    )


def _manifest(dataset: Dataset, split: str, listing: Listing) -> Manifest:
    """Return the manifest; of test images, that of the split val."""
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

"""Find the classes and images of data sets in tar shards (WebDataset) or Parquet files.

Class names are taken from the first existing of these sources:

* a file `classnames.txt`, `class_names.txt` or `classes.txt`, one class name per line, in label
  order;
* the metadata of Parquet files that the library `datasets` wrote;
* the labels.

The file may be in the root or, in a download of the Hugging Face Hub (`datasets--OWNER--NAME`), in
the only revision, `snapshots/REVISION/`, whose files are links to `blobs/`.

Source: "Understand caching", the documentation of the library huggingface_hub.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

import polars as pl

from clinit.errors import ManifestError
from clinit.extract.dataset.containers import (
    Contents,
    SplitFiles,
    checked_names,
    classes_of,
    labels_of,
    split_files,
)
from clinit.extract.dataset.known import HUGGINGFACE, WEBDATASET, Columns, Dataset
from clinit.extract.dataset.layouts import Found, Listing
from clinit.extract.dataset.manifest import LEAVES_ROOT
from clinit.extract.dataset.names import read_class_names
from clinit.extract.dataset.parquet import index_parquet
from clinit.extract.dataset.tar import index_tar
from clinit.extract.dataset.tree import Tree
from clinit.words import counted, examples, printable

_SUFFIX = {WEBDATASET: ".tar", HUGGINGFACE: ".parquet"}
_NAME_FILES = ("classnames.txt", "class_names.txt", "classes.txt")


def find_containers(
    kind: str,
    tree: Tree,
    columns: Columns,
    split: str,
    missing: Callable[[Dataset, str], ManifestError],
) -> Found:
    """Index the containers under a root.

    The classes are taken from all splits, so that a label means the same in all. `columns` is used
    for Parquet files only.

    Raises:
        ManifestError: If a file is compressed or damaged, labels contradict each other, clinit
            cannot find the columns of images and labels, or a download contains several revisions,
            so that images occur twice.
        CacheError: If the file of class names cannot be read.
    """
    _snapshot(tree)
    is_tar, places = kind == WEBDATASET, tree.others()
    splits = split_files([each for each in places if each.lower().endswith(_SUFFIX[kind])], split)
    title = "these shards" if is_tar else "these Parquet files"
    contents = {
        path: index_tar(tree.root / path) if is_tar else index_parquet(tree.root / path, columns)
        for each in splits.values()
        for path in each.paths
    }
    beside = next(filter(None, (_beside(tree, name) for name in _NAME_FILES)), None)
    if beside is not None:
        classes = read_class_names(beside)
    else:
        classes = _classes(tree, list(contents.values()), title)
    description = Dataset(name=kind, title=title, classes=classes, layouts=())
    readers = {
        split: (kind, partial(_listing, tree, files, contents, classes))
        for split, files in splits.items()
    }
    return Found(description, readers, partial(missing, description))


def _classes(tree: Tree, found: list[Contents], title: str) -> tuple[str, ...]:
    told = {each.class_names for each in found if each.class_names is not None}
    if len(told) > 1:
        raise ManifestError(
            f"the files in {printable(tree.root)} name different classes",
            remedy="Give with `--root` a folder of only one configuration of a data set.",
        )
    if told:
        return checked_names(told.pop(), title)
    return classes_of(pl.concat([each.table for each in found]), title) if found else ()


def _listing(
    tree: Tree, files: SplitFiles, contents: Mapping[str, Contents], classes: tuple[str, ...]
) -> Listing:
    """Return the images with a label, and warnings about images that are left out."""
    tables, left_out = list[pl.DataFrame](), dict[str, list[str]]()
    for path in files.paths:
        found = contents[path]
        table = found.table.select(
            path=pl.lit(f"{path}/") + pl.col("member"),
            label=labels_of(found.table, classes, path),
            size_bytes="size_bytes",
            container=pl.lit(path),
            column=pl.lit(found.column),
            position="position",
            container_bytes=pl.lit(tree.facts(path).st_size, dtype=pl.Int64),
        )
        tables.append(table)
        for why, names in found.left_out.items():
            left_out.setdefault(why, []).extend(f"{path}/{name}".rstrip("/") for name in names)
    table = pl.concat(tables)
    leaving = table.filter(LEAVES_ROOT)
    if len(leaving):
        raise ManifestError(
            f"the name of the image {leaving['path'][0]!r} leads out of its container",
            remedy="Pack the file again with names without `..`.",
        )
    unlabelled = table.filter(pl.col("label").is_null())["path"].to_list()
    left_out["images left out, without a label"] = unlabelled
    warnings = (warning for why, names in left_out.items() for warning in counted(names, why))
    return Listing(table.drop_nulls("label"), (*files.warnings, *warnings))


def _beside(tree: Tree, name: str) -> Path | None:
    """Return the path of the file `name` in the root or in the only revision, if it exists."""
    path, folder = tree.file(name), _snapshot(tree)
    return tree.file(f"{folder}/{name}") if path is None and folder is not None else path


def _snapshot(tree: Tree) -> str | None:
    """Return the folder of the only revision in a download of the Hub; None for other folders.

    Raises:
        ManifestError: If the download contains several revisions.
    """
    if not (tree.has_folder("blobs") and tree.has_folder("snapshots")):
        return None
    revisions = tree.folders("snapshots")
    if len(revisions) > 1:
        raise ManifestError(
            f"{printable(tree.root)} contains {len(revisions):,} revisions of a data set"
            f" ({examples(list(map(printable, revisions)))}), so each image would occur several"
            " times",
            remedy="Remove all revisions but one (`hf cache rm REVISION`), or load a revision into"
            " a new folder (`hf download --repo-type dataset OWNER/NAME --revision REVISION"
            " --local-dir FOLDER`).",
        )
    return f"snapshots/{revisions[0]}" if revisions else None

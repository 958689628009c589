"""Data sets in containers: tar shards (WebDataset) and Parquet files (Hugging Face).

They describe themselves, and files beside them say more; nothing of it has to be there, and what is
not as expected is not taken:

* `dataset_info.json` of Hugging Face: `features`, and `splits` with `num_examples`;
* the front matter of `README.md`, a data set card: the same under `dataset_info`, in other words;
* `_info.json` or `info.json` of WebDataset, as timm writes it: `splits` with `num_samples`;
* `classnames.txt`, `class_names.txt` or `classes.txt`: one class name per line, in label order.

They are looked for in the root, and in the one revision of a download of the Hugging Face Hub:
`datasets--OWNER--NAME` with `snapshots/REVISION/`, the files of a revision as links to `blobs/`.

Source: "Understand caching", the documentation of the library huggingface_hub.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import msgspec
import polars as pl

from clinit.errors import ManifestError
from clinit.extract.dataset.containers import (
    SplitFiles,
    checked_names,
    classes_of,
    labels_of,
    split_files,
)
from clinit.extract.dataset.known import (
    HUGGINGFACE,
    SPLITS,
    TEST,
    WEBDATASET,
    Columns,
    Dataset,
    Layout,
    read_class_names,
)
from clinit.extract.dataset.layouts import DoesNotFitError, Listing, Reader, Search, counted
from clinit.extract.dataset.manifest import leaves_root
from clinit.extract.dataset.parquet import (
    Features,
    ParquetTable,
    features_of,
    inspect_parquet,
    read_images,
    read_labels,
)
from clinit.extract.dataset.tar import TarIndex, compressed, index_tar
from clinit.extract.dataset.tree import Tree
from clinit.files.text import TextFileError, read_text
from clinit.words import printable

_COMPRESSED = re.compile(r".*\.(?:tar\.(gz|bz2|xz|zst)|(tgz|tbz2|txz))", re.IGNORECASE)
_LOOKED_AT = 64
"""Images in a row at the beginning of a split: if none of them is there, none will be."""
_SNAPSHOTS = "snapshots"
_NAME_FILES = ("classnames.txt", "class_names.txt", "classes.txt")
_DOCUMENTS = ("dataset_info.json", "_info.json", "info.json")
_COUNTS = ("num_examples", "num_samples")


def tar_splits(tree: Tree, split: str = "val") -> dict[str, SplitFiles]:
    """Return the tar files of each split, by names alone.

    Raises:
        ManifestError: If all are compressed, or a file would be read twice.
    """
    found = {path: match for path in tree.others() if (match := _COMPRESSED.fullmatch(path))}
    splits = _container_files(tree, ".tar", split)
    if found and not splits:
        path, match = next(iter(found.items()))
        raise compressed(tree.root / path, match[1] or match[2])
    left_out = counted(list(found), "compressed files left out")
    return {
        split: replace(each, warnings=(*each.warnings, *left_out)) for split, each in splits.items()
    }


def describe_tar(tree: Tree, columns: Columns, split: str) -> Dataset:
    """Describe the shards under a root by what they and the files beside them say.

    The classes are those of both splits, so that a label means the same in both. `columns` are of
    Parquet files and mean nothing here.

    Raises:
        ManifestError: If a shard is compressed or damaged, or the labels contradict.
        CacheError: If the file of class names is none.
    """
    splits = tar_splits(tree, split)
    classes = _read_names(tree)
    if classes is None:
        told = [_indexed(tree, path).table for files in splits.values() for path in files.paths]
        classes = classes_of(pl.concat(told), "the shards") if told else ()
    return _described(WEBDATASET, "these shards", classes, columns, splits, read_card(tree))


def find_tar(search: Search) -> Reader:
    """Find tar files whose names say that they belong to the split."""
    files = tar_splits(search.tree, search.split).get(search.split)
    if files is None:
        raise DoesNotFitError(f"no .tar file of {search.split}")
    return partial(_read_tar, search, files)


def _read_tar(search: Search, files: SplitFiles) -> Listing:
    indices = {path: _indexed(search.tree, path) for path in files.paths}
    tables = [
        _contained(
            search.tree,
            path,
            name=index.table["member"],
            label=labels_of(index.table, search.dataset.classes, path),
            size_bytes=index.table["size_bytes"],
            position=index.table["position"],
        )
        for path, index in indices.items()
    ]
    unended = [path for path, index in indices.items() if not index.is_ended]
    others = [f"{path}/{name}" for path, index in indices.items() for name in index.others]
    second = [f"{path}/{name}" for path, index in indices.items() for name in index.second]
    return _listing(
        tables,
        (
            *files.warnings,
            *counted(others, "members left out, of no sample with an image"),
            *counted(second, "images left out, of samples with an earlier one"),
            *counted(unended, "shards without the mark of their end, which may be cut off"),
        ),
    )


def _indexed(tree: Tree, path: str) -> TarIndex:
    facts = tree.facts(path)
    return _index(tree.root / path, facts.st_size, facts.st_mtime_ns)


@cache
def _index(path: Path, size: int, changed: int) -> TarIndex:
    """Index a file once for both splits: their classes are looked up in all shards."""
    return index_tar(path)


def parquet_splits(tree: Tree, split: str = "val") -> dict[str, SplitFiles]:
    """Return the Parquet files of each split, by names alone.

    Raises:
        ManifestError: If a file would be read twice.
    """
    return _container_files(tree, ".parquet", split)


def describe_parquet(tree: Tree, columns: Columns, split: str) -> Dataset:
    """Describe the Parquet files under a root by what they and the files beside them say.

    The classes are those of both splits, so that a label means the same in both.

    Raises:
        ManifestError: If a file is damaged, or it is not clear which columns count.
        CacheError: If the file of class names is none.
    """
    splits, card = parquet_splits(tree, split), read_card(tree)
    tables = {
        path: inspect_parquet(tree.root / path, columns, card.features)
        for files in splits.values()
        for path in files.paths
    }
    classes = _parquet_classes(tree, tables)
    return _described(HUGGINGFACE, "these Parquet files", classes, columns, splits, card)


def _parquet_classes(tree: Tree, tables: dict[str, ParquetTable]) -> tuple[str, ...]:
    names = _read_names(tree)
    if names is not None:
        return names
    told = {table.class_names for table in tables.values() if table.class_names is not None}
    if len(told) > 1:
        raise ManifestError(
            f"the Parquet files in {printable(tree.root)} name different classes",
            remedy="Give --root a folder of one configuration of a data set.",
        )
    if told:
        return checked_names(told.pop(), "the Parquet files")
    rows = [read_labels(tree.root / path, table) for path, table in tables.items()]
    return classes_of(pl.concat(rows), "the Parquet files") if rows else ()


def find_parquet(search: Search) -> Reader:
    """Find Parquet files whose names say that they belong to the split."""
    files = parquet_splits(search.tree, search.split).get(search.split)
    if files is not None:
        return partial(_read_parquet, search, files, read_card(search.tree))
    arrow = next((path for path in search.tree.others() if path.lower().endswith(".arrow")), None)
    more = (
        ""
        if arrow is None
        else (
            f"; {printable(arrow)} is in Arrow's format, of which rows are not read in place: write"
            " it as Parquet with `Dataset.to_parquet`"
        )
    )
    raise DoesNotFitError(f"no .parquet file of {search.split}{more}")


def _read_parquet(search: Search, files: SplitFiles, card: Card) -> Listing:
    tables: list[pl.DataFrame] = []
    for path in files.paths:
        file = search.tree.root / path
        table = inspect_parquet(file, search.layout.columns, card.features)
        if not tables:
            _refuse_links(file, table)
        row = pl.int_range(table.rows, eager=True)
        tables.append(
            _contained(
                search.tree,
                path,
                name=row.cast(pl.String),
                label=labels_of(read_labels(file, table), search.dataset.classes, path),
                size_bytes=0,
                position=row,
                column=table.image,
            )
        )
    return _listing(tables, files.warnings)


def _refuse_links(file: Path, table: ParquetTable) -> None:
    """Refuse a file that names images instead of holding them."""
    try:
        first = read_images(file, table.image, 0, min(_LOOKED_AT, table.rows))
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException):
        return  # damaged images: each is an invalid row of the extraction
    if len(first) and first.null_count() == len(first):
        raise ManifestError(
            f"{printable(file)} does not hold the content of its images: the first"
            f" {len(first):,} are null",
            remedy="Write it with the images in it, as `push_to_hub` does"
            " (`Dataset.to_parquet` leaves out those that are files on the disk).",
        )


def _container_files(tree: Tree, suffix: str, split: str) -> dict[str, SplitFiles]:
    """Return the containers of each split, by names alone; a split without any is absent.

    Args:
        tree: The data set.
        suffix: End of the names, in any case.
        split: What is read: train, val, or test, which then stands for val.

    Raises:
        ManifestError: If a container would be read twice.
    """
    _snapshot(tree)
    splits = split_files([path for path in tree.others() if path.lower().endswith(suffix)], split)
    for files in splits.values():
        first = dict[str, str]()
        for path in files.paths:
            other = first.setdefault(os.path.realpath(tree.root / path), path)
            if other != path:
                raise ManifestError(
                    f"{printable(other)} and {printable(path)} in {printable(tree.root)} are links"
                    " to one file: its images would be taken twice",
                    remedy="Remove one of them, then run the same command again.",
                )
    return splits


def _described(
    name: str,
    title: str,
    classes: tuple[str, ...],
    columns: Columns,
    splits: dict[str, SplitFiles],
    card: Card,
) -> Dataset:
    folders: dict[str, tuple[str, ...]] = dict.fromkeys((*SPLITS, TEST), (".",))
    return Dataset(
        name=name,
        title=title,
        classes=classes,
        layouts=(Layout(kind=name, folders=folders, columns=columns),),
        images={s: card.images[f.part] for s, f in splits.items() if f.part in card.images},
    )


def _contained(
    tree: Tree,
    path: str,
    *,
    name: pl.Series,
    label: pl.Series,
    size_bytes: pl.Series | int,
    position: pl.Series,
    column: str = "",
) -> pl.DataFrame:
    """Return the rows of one container.

    Args:
        tree: The data set.
        path: The container, relative to the root.
        name: What each image is called in it.
        label: Its label; null if it has none.
        size_bytes: Its size; 0 if it is unknown.
        position: Where it begins in a tar file; its row in a Parquet file.
        column: The column of the images in a Parquet file.
    """
    return pl.DataFrame({"name": name, "label": label, "position": position}).select(
        path=pl.lit(f"{path}/") + pl.col("name"),
        label="label",
        size_bytes=pl.lit(size_bytes, dtype=pl.Int64),
        container=pl.lit(path),
        column=pl.lit(column),
        position="position",
        container_bytes=pl.lit(tree.facts(path).st_size, dtype=pl.Int64),
    )


def _listing(tables: Sequence[pl.DataFrame], warnings: tuple[str, ...]) -> Listing:
    """Return the rows that have a label, and a warning of the others.

    Raises:
        ManifestError: If the name of an image would lead out of the root.
    """
    table = pl.concat(tables)
    leaving = table.filter(leaves_root(pl.col("path")))
    if len(leaving):
        raise ManifestError(
            f"the name of the image {leaving['path'][0]!r} leads out of its container",
            remedy="Pack the file again with names without `..`.",
        )
    unlabelled = table.filter(pl.col("label").is_null())["path"].to_list()
    return Listing(
        table.drop_nulls("label"),
        (*warnings, *counted(unlabelled, "images left out, without a label")),
    )


@dataclass(frozen=True, slots=True)
class Card:
    """The description of a data set; empty if there is none."""

    features: Features = field(default_factory=dict)
    """Column -> its description, in the words of `dataset_info.json`."""
    images: dict[str, int] = field(default_factory=dict)
    """train, validation or test -> number of images."""


def read_card(tree: Tree) -> Card:
    """Read the description of a data set.

    Raises:
        ManifestError: If the root holds several revisions.
    """
    for name in _DOCUMENTS:
        if (path := _beside(tree, name)) is not None:
            try:
                document = msgspec.json.decode(read_text(path))
            except (TextFileError, msgspec.DecodeError, RecursionError):
                continue
            return Card(features_of(document), _counts(document))
    path = _beside(tree, "README.md")
    return Card() if path is None else _card_of_readme(path)


def _read_names(tree: Tree) -> tuple[str, ...] | None:
    """Return the class names of the file of them, if there is one."""
    path = next(filter(None, (_beside(tree, name) for name in _NAME_FILES)), None)
    return None if path is None else read_class_names(path)


def _beside(tree: Tree, name: str) -> Path | None:
    """Return the path of a file that describes the data set, if it is there."""
    path, folder = tree.file(name), _snapshot(tree)
    return tree.file(f"{folder}/{name}") if path is None and folder is not None else path


def _snapshot(tree: Tree) -> str | None:
    """Return the folder of the one revision under a root; None if it is no such download.

    Raises:
        ManifestError: If there are several revisions.
    """
    if not (tree.has_folder("blobs") and tree.has_folder(_SNAPSHOTS)):
        return None
    revisions = tree.folders(_SNAPSHOTS)
    if len(revisions) > 1:
        raise ManifestError(
            f"{printable(tree.root)} holds {len(revisions):,} revisions of a data set"
            f" ({', '.join(map(printable, revisions[:3]))}): its images would be taken once from"
            " each",
            remedy="Remove all but one: `hf cache prune` keeps those that a branch or a tag names,"
            " `hf cache rm REVISION` removes another. Or load one into a folder of its own with"
            " `hf download --repo-type dataset OWNER/NAME --revision REVISION --local-dir FOLDER`.",
        )
    return f"{_SNAPSHOTS}/{revisions[0]}" if revisions else None


def _card_of_readme(path: Path) -> Card:
    import huggingface_hub

    try:
        read_text(path)  # never without end
        info: Any = (huggingface_hub.metadata_load(path) or {}).get("dataset_info")
    except Exception:  # whatever YAML raises: a README is no reason to stop
        return Card()
    if isinstance(info, list):  # one for each configuration
        info = info[0] if len(info) == 1 else None
    if not isinstance(info, dict):
        return Card()
    listed = info.get("features")
    features = (
        [each for each in listed if isinstance(each, dict)] if isinstance(listed, list) else []
    )
    return Card(
        {str(each.get("name")): _feature(each.get("dtype")) for each in features}, _counts(info)
    )


def _feature(kind: object) -> dict[str, Any]:
    """Return a feature of a card in the words of `dataset_info.json`."""
    if kind == "image":
        return {"_type": "Image"}
    if isinstance(kind, dict) and isinstance(kind.get("class_label"), dict):
        names = kind["class_label"].get("names")
        if isinstance(names, dict):  # '0': cat, '1': dog
            names = [names.get(str(label)) for label in range(len(names))]
        return {"_type": "ClassLabel", "names": names}
    return {}


def _counts(document: object) -> dict[str, int]:
    splits = document.get("splits") if isinstance(document, dict) else None
    if isinstance(splits, list):
        splits = {each.get("name"): each for each in splits if isinstance(each, dict)}
    if not isinstance(splits, dict):
        return {}
    named = {name: each for name, each in splits.items() if isinstance(each, dict)}
    found = {n: next((e[k] for k in _COUNTS if k in e), None) for n, e in named.items()}
    return {str(name): count for name, count in found.items() if isinstance(count, int)}

"""WebDataset: uncompressed tar files with `key.jpg` and `key.cls`, `key.json` or `key.txt`."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import cache, partial
from pathlib import Path

import polars as pl

from clinit.extract.containers.card import read_card, read_names
from clinit.extract.containers.columns import Columns
from clinit.extract.containers.labels import classes_of, labels_of
from clinit.extract.containers.split_files import SplitFiles
from clinit.extract.containers.tar_index import TarIndex, compressed, index_tar
from clinit.extract.dataset import SPLITS, TEST, WEBDATASET, Dataset, Layout
from clinit.extract.layouts.contained import contained, container_files, expected, listing
from clinit.extract.layouts.search import DoesNotFitError, Listing, Reader, Search, counted
from clinit.extract.tree import Tree

_COMPRESSED = re.compile(r".*\.(?:tar\.(gz|bz2|xz|zst)|(tgz|tbz2|txz))", re.IGNORECASE)


def splits_of(tree: Tree, split: str = "val") -> dict[str, SplitFiles]:
    """Return the tar files of each split, by names alone.

    Raises:
        ManifestError: If all are compressed, or a file would be read twice.
    """
    found = {path: match for path in tree.others() if (match := _COMPRESSED.fullmatch(path))}
    splits = container_files(tree, ".tar", split)
    if found and not splits:
        path, match = next(iter(found.items()))
        raise compressed(tree.root / path, match[1] or match[2])
    left_out = counted(list(found), "compressed files left out")
    return {
        split: replace(each, warnings=(*each.warnings, *left_out)) for split, each in splits.items()
    }


def describe(tree: Tree, columns: Columns, split: str) -> Dataset:
    """Describe the shards under a root by what they and the files beside them say.

    The classes are those of both splits, so that a label means the same in both. `columns` are of
    Parquet files and mean nothing here.

    Raises:
        ManifestError: If a shard is compressed or damaged, or the labels contradict.
        CacheError: If the file of class names is none.
    """
    splits = splits_of(tree, split)
    classes = read_names(tree)
    if classes is None:
        told = [_indexed(tree, path).table for files in splits.values() for path in files.paths]
        classes = classes_of(pl.concat(told), "the shards") if told else ()
    return Dataset(
        name=WEBDATASET,
        title="these shards",
        classes=classes,
        layouts=(Layout(kind=WEBDATASET, folders=dict.fromkeys((*SPLITS, TEST), (".",))),),
        images=expected(read_card(tree), splits),
    )


def find(search: Search) -> Reader:
    """Find tar files whose names say that they belong to the split."""
    files = splits_of(search.tree, search.split).get(search.split)
    if files is None:
        raise DoesNotFitError(f"no .tar file of {search.split}")
    return partial(_read, search, files)


def _read(search: Search, files: SplitFiles) -> Listing:
    indices = {path: _indexed(search.tree, path) for path in files.paths}
    tables = [
        contained(
            path,
            search.tree.facts(path).st_size,
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
    return listing(
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

"""Hugging Face data sets: Parquet files with a column of images and one of labels."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import polars as pl

from clinit.errors import ManifestError
from clinit.extract.containers.card import Card, read_card, read_names
from clinit.extract.containers.columns import Columns
from clinit.extract.containers.labels import checked_names, classes_of, labels_of
from clinit.extract.containers.parquet_images import read_images
from clinit.extract.containers.parquet_table import (
    ParquetTable,
    inspect_parquet,
    read_labels,
)
from clinit.extract.containers.split_files import SplitFiles
from clinit.extract.dataset import HUGGINGFACE, SPLITS, TEST, Dataset, Layout
from clinit.extract.layouts.contained import contained, container_files, expected, listing
from clinit.extract.layouts.search import DoesNotFitError, Listing, Reader, Search
from clinit.extract.tree import Tree
from clinit.words import printable

_LOOKED_AT = 64
"""Images in a row at the beginning of a split: where none of them is there, none will be."""


def splits_of(tree: Tree, split: str = "val") -> dict[str, SplitFiles]:
    """Return the Parquet files of each split, by names alone.

    Raises:
        ManifestError: If a file would be read twice.
    """
    return container_files(tree, ".parquet", split)


def describe(tree: Tree, columns: Columns, split: str) -> Dataset:
    """Describe the Parquet files under a root by what they and the files beside them say.

    The classes are those of both splits, so that a label means the same in both.

    Raises:
        ManifestError: If a file is damaged, or it is not clear which columns count.
        CacheError: If the file of class names is none.
    """
    splits, card = splits_of(tree, split), read_card(tree)
    tables = {
        path: inspect_parquet(tree.root / path, columns, card.features)
        for files in splits.values()
        for path in files.paths
    }
    layout = Layout(
        kind=HUGGINGFACE, folders=dict.fromkeys((*SPLITS, TEST), (".",)), columns=columns
    )
    return Dataset(
        name=HUGGINGFACE,
        title="these Parquet files",
        classes=_classes(tree, tables),
        layouts=(layout,),
        images=expected(card, splits),
    )


def find(search: Search) -> Reader:
    """Find Parquet files whose names say that they belong to the split."""
    files = splits_of(search.tree, search.split).get(search.split)
    if files is None:
        raise DoesNotFitError(f"no .parquet file of {search.split}{_arrow(search.tree)}")
    return partial(_read, search, files, read_card(search.tree))


def _arrow(tree: Tree) -> str:
    arrow = next((path for path in tree.others() if path.lower().endswith(".arrow")), None)
    if arrow is None:
        return ""
    return (
        f"; {printable(arrow)} is in Arrow's format, of which rows are not read in place: write it"
        " as Parquet with `Dataset.to_parquet`"
    )


def _classes(tree: Tree, tables: dict[str, ParquetTable]) -> tuple[str, ...]:
    names = read_names(tree)
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


def _read(search: Search, files: SplitFiles, card: Card) -> Listing:
    tables: list[pl.DataFrame] = []
    for path in files.paths:
        file = search.tree.root / path
        table = inspect_parquet(file, search.layout.columns, card.features)
        if not tables:
            _refuse_links(file, table)
        row = pl.int_range(table.rows, eager=True)
        label = labels_of(read_labels(file, table), search.dataset.classes, path)
        tables.append(
            contained(
                path,
                search.tree.facts(path).st_size,
                name=row.cast(pl.String),
                label=label,
                size_bytes=0,
                position=row,
                column=table.image,
            )
        )
    return listing(tables, files.warnings)


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

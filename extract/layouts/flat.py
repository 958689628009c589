"""All images of a split in one folder, with their labels in a list beside it."""

from __future__ import annotations

from pathlib import Path

import polars as pl

from clinit.errors import ManifestError
from clinit.extract.layouts.search import (
    Listing,
    Search,
    counted,
    file_warnings,
    image_table,
)
from clinit.files.text import lines_of
from clinit.words import printable


def find_flat(search: Search) -> tuple[str, tuple[str, ...]]:
    """Return the folder that holds images, and warnings about further ones."""
    return search.folder(search.tree.has_image, "with no image directly inside")


def label_flat(
    search: Search, folder: str, key: pl.Expr, lines: pl.DataFrame, source: Path
) -> Listing:
    """Return the images of `folder` with their labels from a list.

    Args:
        search: Where the folder lies.
        folder: The folder, relative to the root.
        key: What of `path` the list calls an image.
        lines: The list: `key` and `label`, one row per image.
        source: The file that the list was read from, for messages.

    Raises:
        ManifestError: If the list names an image twice.
    """
    twice = lines.filter(pl.col("key").is_duplicated())
    if len(twice):
        raise damaged(source, f"names {twice['key'][0]} twice")
    images = search.tree.images(folder, deep=False)
    table = image_table([images]).with_columns(key=key).join(lines, on="key", how="left")
    without_line = table.filter(pl.col("label").is_null())["path"].to_list()
    without_file = lines.join(table, on="key", how="anti")["key"].cast(pl.String).to_list()
    return Listing(
        table.drop_nulls("label").drop("key"),
        (
            *counted(without_line, f"images left out, without a line in {source.name}"),
            *counted(without_file, f"lines of {source.name} without an image"),
            *counted(images.folders, "folders left out, among the images"),
            *file_warnings([images]),
        ),
    )


def read_lines(path: Path) -> list[str]:
    """Return the lines of a list that are not blank.

    Raises:
        ManifestError: If the file cannot be read as text.
    """
    try:
        return lines_of(path.read_text(encoding="utf-8-sig"))
    except (OSError, UnicodeDecodeError) as error:
        raise damaged(path, f"cannot be read: {error}") from error


def damaged(path: Path, problem: str) -> ManifestError:
    """Return the error for a list that is not as its publisher wrote it."""
    return ManifestError(
        f"{printable(path)} {problem}",
        remedy="Fetch this file again from the publisher of the data set.",
    )

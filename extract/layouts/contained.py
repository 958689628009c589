"""The images of containers as a listing: what both kinds of containers have in common."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

import polars as pl

from clinit.errors import ManifestError
from clinit.extract.containers.card import Card
from clinit.extract.containers.hub import snapshot
from clinit.extract.containers.split_files import SplitFiles, split_files
from clinit.extract.layouts.search import Listing, counted
from clinit.extract.manifest_table import leaves_root
from clinit.extract.tree import Tree
from clinit.words import printable


def container_files(tree: Tree, suffix: str, split: str) -> dict[str, SplitFiles]:
    """Return the containers of each split, by names alone; a split without any is absent.

    Args:
        tree: The data set.
        suffix: End of the names, in any case.
        split: What is read: train, val, or test, which then stands for val.

    Raises:
        ManifestError: If a container would be read twice.
    """
    snapshot(tree)
    paths = [path for path in tree.others() if path.lower().endswith(suffix)]
    splits = split_files(paths, split)
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


def contained(
    path: str,
    container_bytes: int,
    *,
    name: pl.Series,
    label: pl.Series,
    size_bytes: pl.Series | int,
    position: pl.Series,
    column: str = "",
) -> pl.DataFrame:
    """Return the rows of one container.

    Args:
        path: The container, relative to the root.
        container_bytes: Its size.
        name: What each image is called in it.
        label: Its label; null where it has none.
        size_bytes: Its size; 0 where it is unknown.
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
        container_bytes=pl.lit(container_bytes, dtype=pl.Int64),
    )


def listing(tables: Sequence[pl.DataFrame], warnings: tuple[str, ...]) -> Listing:
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


def expected(card: Card, splits: Mapping[str, SplitFiles]) -> dict[str, int]:
    """Return the number of images that the description of a data set says of each split."""
    return {
        split: card.images[files.part]
        for split, files in splits.items()
        if files.part in card.images
    }

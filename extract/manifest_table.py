"""The table of a manifest: its columns, and what must hold of them."""

from __future__ import annotations

import polars as pl

SCHEMA = pl.Schema(
    {"path": pl.String, "label": pl.Int64, "class_name": pl.String, "size_bytes": pl.Int64}
)
CONTAINED_SCHEMA = pl.Schema(
    [
        *SCHEMA.items(),
        ("container", pl.String),
        ("column", pl.String),
        ("position", pl.Int64),
        ("container_bytes", pl.Int64),
    ]
)
"""Columns for images in containers: `path` is the container's with the name in it behind a `/`;
`column` is that of the images in a Parquet file and empty for a tar file; `position` is the first
byte in a tar file and the row in a Parquet file; `container_bytes` is the size of the container."""
# An absolute path (of Windows too), a step up, or a name that the digest could not tell apart.
_LEAVES_ROOT = r"^$|^[/\\]|^[A-Za-z]:[/\\]|(^|[/\\])\.\.([/\\]|$)|\x00"
CONTAINER = ("container", "column", "container_bytes")
"""Columns that are the same in all rows of a container."""


def leaves_root(path: pl.Expr) -> pl.Expr:
    """Return which paths are absolute, step up, or could not be told apart by a digest."""
    return path.str.contains(_LEAVES_ROOT)


def is_contained(table: pl.DataFrame) -> bool:
    """Return whether a table is of images in containers."""
    return "container" in table.columns


def wrong_columns(table: pl.DataFrame, *, contained: bool) -> str | None:
    """Return which columns there are instead of those there should be, or None.

    Args:
        table: A table of images.
        contained: Whether they should lie in containers.
    """
    expected = CONTAINED_SCHEMA if contained else SCHEMA
    if table.schema == expected:
        return None
    return f"the columns are {dict(table.schema)}, expected {dict(expected)}"


def table_problem(table: pl.DataFrame, class_names: tuple[str, ...]) -> str | None:
    """Return what is wrong with a table of images, or None."""
    if problem := wrong_columns(table, contained=is_contained(table)):
        return problem
    if len(set(class_names)) != len(class_names):
        return "two classes have the same name"
    if table.is_empty():
        return None
    if sum(table.null_count().row(0)):
        return "the table has missing values"
    path, label = pl.col("path"), pl.col("label")
    if not table.select(label.is_between(0, len(class_names) - 1).all()).item():
        return f"labels must lie in [0, {len(class_names)})"
    leaving = table.filter(leaves_root(path))
    if len(leaving):
        return f"the path {leaving['path'][0]!r} leaves the root"
    names = pl.Series(class_names, dtype=pl.String).gather(table["label"])
    if not (names == table["class_name"]).all():
        return "class_name and label disagree"
    if problem := _wrong_places(table) if is_contained(table) else _wrong_order(table):
        return problem
    if table["path"].n_unique() != len(table):
        return "a path occurs twice"
    if table.select((pl.col("size_bytes") < 0).any()).item():
        return "a size is negative"
    return None


def _wrong_order(table: pl.DataFrame, major: str = "label", minor: str = "path") -> str | None:
    one, other = pl.col(major), pl.col(minor)
    in_order = (one > one.shift()) | ((one == one.shift()) & (other > other.shift()))
    if table.select(in_order.slice(1).all()).item():
        return None
    return f"the rows are not sorted by ({major}, {minor})"


def _wrong_places(table: pl.DataFrame) -> str | None:
    """Return what is wrong with where images lie in their containers, or None."""
    container = pl.col("container")
    inside = pl.col("path").str.starts_with(pl.concat_str(container, pl.lit("/")))
    outside = table.filter(~inside | (container == ""))
    if len(outside):
        return f"the path {outside['path'][0]!r} is not in its container"
    if table.select((pl.min_horizontal("position", "container_bytes") < 0).any()).item():
        return "a position or the size of a container is negative"
    if table.select(CONTAINER).n_unique() != table["container"].n_unique():
        return "a container has two sizes or two columns"
    return _wrong_order(table, "container", "position")

"""Read tables: Parquet files, and text with a header."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import polars as pl

from clinit.errors import ClinitError, unreadable
from clinit.files.paths import check_readable
from clinit.words import printable

DAMAGE = (ValueError, pl.exceptions.PolarsError, pl.exceptions.PanicException)
"""Errors that polars raises for a damaged file."""
_FREE_ROWS, _ROWS_PER_BYTE = 2**20, 8
"""A file may declare `_FREE_ROWS` rows, or `_ROWS_PER_BYTE` rows per byte if that is more."""


@contextmanager
def reading(path: Path, what: str, error: type[ClinitError], remedy: str) -> Iterator[None]:
    """Check that a file can be opened, and turn errors of reading it as a table into `error`.

    Raises:
        StorageError: If the file cannot be read.
        ClinitError: The given `error`, if it is not such a table, with the `remedy`.
    """
    check_readable(path, error)
    try:
        yield
    except OSError as problem:
        raise unreadable(printable(path), problem) from problem
    except (KeyError, msgspec.DecodeError, RecursionError, *DAMAGE) as problem:
        message = f"{printable(path)} cannot be read as {what}: {problem}"
        raise error(message, remedy=remedy) from problem


def scan_parquet(path: Path) -> pl.LazyFrame:
    """Return the rows of one file without reading them; folder names never become columns."""
    return pl.scan_parquet(path, glob=False, hive_partitioning=False)


def read_table(path: Path) -> pl.DataFrame:
    """Read a table that a user wrote: Parquet, or text with a header, separated by tab, `,` or `;`.

    The columns of text are texts.

    Raises:
        OSError: If the file cannot be read.
        PolarsError, ValueError: If it is not such a table (`DAMAGE`).
    """
    if path.suffix.lower() == ".parquet":
        return scan_parquet(path).collect()
    with path.open("rb") as file:
        head = file.readline(2**16)
    sign = next((sign for sign in ("\t", ",", ";") if sign.encode() in head), ",")
    return pl.read_csv(path, separator=sign, infer_schema=False, glob=False)


def row_count(table: pl.LazyFrame, size_bytes: int) -> int:
    """Return the number of rows that the metadata of a file declare.

    Raises:
        ValueError: If the file is too small for so many rows, for which polars would reserve
            memory.
        PolarsError: If the file is damaged.
    """
    rows: int = table.select(pl.len()).collect().item()
    if rows > max(_FREE_ROWS, _ROWS_PER_BYTE * size_bytes):
        raise ValueError(f"it declares {rows:,} rows in {size_bytes:,} bytes")
    return rows

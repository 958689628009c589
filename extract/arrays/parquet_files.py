"""Parquet files of features, read and written.

A column has features (arrays or lists of one length) and one has labels. Single rows cannot be
read: the features are copied, some row groups at a time.

An exported file has the columns `row` of the cache and of its manifest, `path`, `label`,
`class_name`, and `features`, an array of fixed length, with the class names in the metadata; a
shard becomes a row group.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from polars.io.plugins import register_io_source

from clinit.errors import CacheError
from clinit.extract.arrays.array_file import (
    ExportedRows,
    Labels,
    StoredFeatures,
    parse_class_names,
    spooled,
)
from clinit.extract.dataset.parquet import DAMAGE, row_count, scan_parquet
from clinit.files.commit import commit_file
from clinit.files.lock import claim_file

_FLOATS: dict[Any, str] = {pl.Float16: "float16", pl.Float32: "float32", pl.Float64: "float64"}
_BLOCK_BYTES = 2**24
"""Features that are read at once."""


@dataclass(frozen=True)
class ParquetFile:
    """A Parquet file."""

    path: Path

    def names(self) -> tuple[str, ...]:
        """Return the names of the columns."""
        return tuple(self._columns[0])

    def features(self, name: str) -> StoredFeatures:
        """Return a column of arrays; opening it copies it."""
        columns, rows = self._columns
        kind, dim = columns[name], 0
        if isinstance(kind, pl.Array):
            dim = kind.size if len(kind.shape) == 1 else 0
        elif isinstance(kind, pl.List):
            with self._failures():
                first = scan_parquet(self.path).select(name).head(1).collect().to_series()
                dim = int(first.list.len().fill_null(0)[0])
        number = _FLOATS.get(getattr(kind, "inner", kind).base_type(), str(kind))
        shape = (rows, dim) if dim else (rows,)
        return StoredFeatures(
            f"`{name}` of {self.path}",
            shape,
            number,
            lambda folder: spooled(
                self._blocks(name, dim, number), shape, np.dtype(number), folder
            ),
        )

    def _blocks(self, name: str, dim: int, number: str) -> Iterator[memoryview]:
        rows = max(1, _BLOCK_BYTES // (dim * np.dtype(number).itemsize))
        with self._failures():
            for frame in scan_parquet(self.path).select(name).collect_batches(chunk_size=rows):
                column = frame.to_series()
                if column.null_count() or column.explode(empty_as_null=True).null_count():
                    raise ValueError(f"`{name}` has missing values")
                if isinstance(column.dtype, pl.List):
                    column = column.list.to_array(dim)
                yield np.ascontiguousarray(column.to_numpy(), dtype=number).data.cast("B")

    def labels(self, name: str) -> Labels:
        """Return a column: integers, or texts as a list."""
        with self._failures():
            column = scan_parquet(self.path).select(name).collect().to_series()
            if column.null_count():
                raise ValueError(f"`{name}` has missing values")
            if column.dtype.is_integer():
                return column.to_numpy()
            if isinstance(column.dtype, pl.String | pl.Categorical | pl.Enum):
                return column.cast(pl.String).to_list()
            raise ValueError(f"`{name}` holds {column.dtype}, expected integers or texts")

    def class_names(self) -> tuple[str, ...] | None:
        """Return the JSON list `class_names` of the file's metadata."""
        with self._failures():
            text = pl.read_parquet_metadata(self.path).get("class_names")
        return None if text is None else parse_class_names(text, self.path)

    @cached_property
    def _columns(self) -> tuple[Mapping[str, Any], int]:
        """Names and types of the columns, and the number of rows."""
        with self._failures():
            table = scan_parquet(self.path)
            rows = row_count(table, self.path.stat().st_size)
            if not rows:
                raise ValueError("it holds no rows")
            return table.collect_schema(), rows

    @contextmanager
    def _failures(self) -> Iterator[None]:
        try:
            yield
        except DAMAGE as error:
            raise CacheError(
                f"cannot read {self.path} as a table of features: {str(error)[:300]}",
                remedy="Write one row per sample: a column of arrays of floats of one length, and"
                " one of labels that are integers or texts.",
            ) from error


def write_parquet(exported: ExportedRows, path: Path) -> None:
    """Write rows into a Parquet file, atomically.

    Raises:
        CacheError: If a shard cannot be read.
        ClinitError: If the file cannot be written.
    """
    with claim_file(path):
        commit_file(path, lambda draft: _write(exported, draft))


def _write(exported: ExportedRows, draft: Path) -> None:
    """Write a draft; polars asks for the blocks in a thread: this one stays open to signals."""
    number = pl.Float16 if exported.dtype.name == "float16" else pl.Float32
    schema: dict[str, Any] = {
        "row": pl.Int64(),
        "path": pl.String(),
        "label": pl.Int64(),
        "class_name": pl.String(),
        "features": pl.Array(number, exported.dim),
    }
    stopped, failures = threading.Event(), list[BaseException]()

    def frames(columns: list[str] | None, *_: object) -> Iterator[pl.DataFrame]:
        try:
            for rows, features in exported.blocks():
                if stopped.is_set():
                    return
                if len(rows):
                    frame = exported.images[rows].with_columns(
                        row=pl.Series(rows), features=pl.Series(features, dtype=schema["features"])
                    )
                    yield frame.select(columns or list(schema))
        except BaseException as error:
            failures.append(error)
            raise

    table = register_io_source(frames, schema=schema, is_pure=False)
    with ThreadPoolExecutor(1) as pool:
        written = pool.submit(
            table.sink_parquet,
            draft,
            compression="uncompressed",  # features are noise to a compressor
            statistics=False,
            row_group_size=exported.block_rows,
            metadata=exported.metadata,
        )
        try:
            written.result()
        except pl.exceptions.PolarsError as error:
            if failures:  # polars has wrapped it into one of its own
                raise failures[0] from None
            raise OSError(str(error)) from error  # of the disk: polars knows no other
        finally:
            stopped.set()

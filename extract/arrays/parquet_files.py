"""Parquet files of features, read and written.

A column has features (arrays or lists of one length) and one has labels. Single rows cannot be
read: the features are copied, some row groups at a time.

What is written has the columns `row` of the cache and of its manifest, `path`, `label`,
`class_name`, and `features`, an array of fixed length, with the class names in the metadata; a
shard becomes a row group.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import cached_property, partial
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
    Take,
    parse_class_names,
    spooled,
)
from clinit.extract.dataset.parquet import row_count, scan_parquet
from clinit.files.commit import commit_file
from clinit.files.lock import claim_file

_FLOATS: dict[Any, str] = {pl.Float16: "float16", pl.Float32: "float32", pl.Float64: "float64"}
_REMEDY = (
    "Write one row per sample: a column of arrays of floats of one length, and one of labels that"
    " are integers or texts."
)
_BLOCK_BYTES = 2**24
"""Features that are read at once."""


@dataclass(frozen=True)
class ParquetFile:
    """A Parquet file."""

    path: Path

    def names(self) -> tuple[str, ...]:
        """Return the names of the columns."""
        with self._failures():
            if not self._rows:
                raise ValueError("it holds no rows")
            return tuple(scan_parquet(self.path).collect_schema())

    def features(self, name: str) -> StoredFeatures:
        """Return a column of arrays; opening it copies it."""
        with self._failures():
            rows, kind = self._rows, scan_parquet(self.path).collect_schema()[name]
            dim = self._dim(name, rows)
            number = _FLOATS.get(getattr(kind, "inner", kind).base_type(), str(kind))
        shape = (rows, dim) if dim else (rows,)
        return StoredFeatures(
            f"`{name}` of {self.path}", shape, number, partial(self._open, name, shape, number)
        )

    def _dim(self, name: str, rows: int) -> int:
        """Return the length of the arrays in a column; 0 where it holds none."""
        kind = scan_parquet(self.path).collect_schema()[name]
        if isinstance(kind, pl.Array):
            return kind.size if len(kind.shape) == 1 else 0
        if not isinstance(kind, pl.List) or not rows:
            return 0
        first = scan_parquet(self.path).select(name).head(1).collect().to_series()
        return int(first.list.len().fill_null(0)[0])

    def _open(
        self, name: str, shape: tuple[int, ...], number: str, folder: Path
    ) -> AbstractContextManager[Take]:
        return spooled(self._blocks(name, shape[1], number), shape, np.dtype(number), folder)

    def _blocks(self, name: str, dim: int, number: str) -> Iterator[memoryview]:
        rows = max(1, _BLOCK_BYTES // (dim * np.dtype(number).itemsize))
        with self._failures():
            for frame in scan_parquet(self.path).select(name).collect_batches(chunk_size=rows):
                column = frame.to_series()
                if column.null_count() or column.explode(empty_as_null=True).null_count():
                    raise self._refusal(f"`{name}` has missing values")
                if isinstance(column.dtype, pl.List):
                    column = column.list.to_array(dim)
                block = np.ascontiguousarray(column.to_numpy(), dtype=number)
                if block.shape != (len(column), dim):
                    raise self._refusal(f"`{name}` holds rows of different lengths")
                yield block.data.cast("B")

    def labels(self, name: str) -> Labels:
        """Return a column: integers, or texts as a list."""
        with self._failures():
            column = scan_parquet(self.path).select(name).collect().to_series()
            if column.null_count():
                raise self._refusal(f"`{name}` has missing values")
            if column.dtype.is_integer():
                return column.to_numpy()
            if isinstance(column.dtype, pl.String | pl.Categorical | pl.Enum):
                return column.cast(pl.String).to_list()
        raise self._refusal(f"`{name}` holds {column.dtype}, expected integers or texts")

    def class_names(self) -> tuple[str, ...] | None:
        """Return the JSON list `class_names` of the file's metadata."""
        with self._failures():
            text = pl.read_parquet_metadata(self.path).get("class_names")
        return None if text is None else parse_class_names(text, self.path)

    @cached_property
    def _rows(self) -> int:
        return row_count(scan_parquet(self.path), self.path.stat().st_size)

    @contextmanager
    def _failures(self) -> Iterator[None]:
        try:
            yield
        except CacheError:
            raise
        except (ValueError, pl.exceptions.PolarsError, pl.exceptions.PanicException) as error:
            raise self._refusal(str(error)[:300]) from error

    def _refusal(self, why: str) -> CacheError:
        return CacheError(f"cannot read {self.path} as a table of features: {why}", remedy=_REMEDY)


def write_parquet(exported: ExportedRows, path: Path) -> None:
    """Write rows into a Parquet file, atomically.

    Raises:
        CacheError: If a shard cannot be read.
        ClinitError: If the file cannot be written.
    """
    with claim_file(path):
        commit_file(path, lambda draft: _Writer(exported).write(draft))


class _Writer:
    """polars asks for the blocks, in a thread of its own: this one stays open to signals."""

    def __init__(self, exported: ExportedRows) -> None:
        self._exported = exported
        self._stopped = threading.Event()
        self._error: BaseException | None = None

    def write(self, draft: Path) -> None:
        frame = register_io_source(self._frames, schema=_schema(self._exported), is_pure=False)

        def sink() -> None:
            frame.sink_parquet(
                draft,
                # Features are noise to a compressor.
                compression="uncompressed",
                statistics=False,
                row_group_size=self._exported.block_rows,
                metadata=self._exported.metadata,
            )

        with ThreadPoolExecutor(1) as pool:
            written = pool.submit(sink)
            try:
                written.result()
            except pl.exceptions.PolarsError as error:
                if self._error is not None:  # polars has wrapped it into one of its own
                    raise self._error from None
                raise OSError(str(error)) from error  # of the disk: polars knows no other
            finally:
                self._stopped.set()

    def _frames(
        self,
        with_columns: list[str] | None,
        predicate: Any,
        n_rows: int | None,
        batch_size: int | None,
    ) -> Iterator[pl.DataFrame]:
        assert predicate is None
        assert n_rows is None
        try:
            for rows, features in self._exported.blocks():
                if self._stopped.is_set():
                    return
                if not len(rows):
                    continue
                frame = _frame(rows, features, self._exported)
                yield frame if with_columns is None else frame.select(with_columns)
        except BaseException as error:
            self._error = error
            raise


def _schema(exported: ExportedRows) -> dict[str, Any]:
    number = pl.Float16 if exported.dtype.name == "float16" else pl.Float32
    return {
        "row": pl.Int64(),
        "path": pl.String(),
        "label": pl.Int64(),
        "class_name": pl.String(),
        "features": pl.Array(number, exported.dim),
    }


def _frame(rows: np.ndarray, features: np.ndarray, exported: ExportedRows) -> pl.DataFrame:
    images = exported.images[int(rows[0]) : int(rows[-1]) + 1]
    if len(images) > len(rows):
        images = images[rows - rows[0]]
    schema = _schema(exported)
    columns = images.with_columns(
        row=pl.Series(rows), features=pl.Series(features, dtype=schema["features"])
    )
    return columns.select(*schema)

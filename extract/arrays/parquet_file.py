"""A Parquet file: a column of features (arrays or lists of one length) and one of labels.

Single rows cannot be read from it: the features are copied, some row groups at a time.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import cached_property, partial
from mmap import ACCESS_READ, mmap
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from clinit.errors import CacheError
from clinit.extract.arrays.array_file import (
    Labels,
    StoredFeatures,
    Take,
    parse_class_names,
    spooled,
)
from clinit.extract.parquet_scan import parquet_schema, scan_parquet
from clinit.extract.parquet_size import parquet_size, row_groups

_FLOATS: dict[Any, str] = {pl.Float16: "float16", pl.Float32: "float32", pl.Float64: "float64"}
_REMEDY = (
    "Write one row per sample: a column of arrays of floats of one length, and one of labels that"
    " are integers or texts."
)
_BLOCK_BYTES = 2**24
"""Features that are read at once, where row groups are smaller: every reading begins with the
whole footer, which has an entry per row group."""


@dataclass(frozen=True)
class ParquetFile:
    """A Parquet file."""

    path: Path

    def names(self) -> tuple[str, ...]:
        """Return the names of the columns."""
        with self._failures():
            assert self._row_groups, "a file without row groups is refused"
            if not self._row_groups:  # what the file declares is looked at before polars reads it
                raise ValueError("it holds no rows")
            return tuple(parquet_schema(self.path))

    def features(self, name: str) -> StoredFeatures:
        """Return a column of arrays; opening it copies it."""
        with self._failures():
            rows, kind = sum(self._row_groups), parquet_schema(self.path)[name]
            dim = self._dim(name, rows)
            number = _FLOATS.get(getattr(kind, "inner", kind).base_type(), str(kind))
        shape = (rows, dim) if dim else (rows,)
        return StoredFeatures(
            f"`{name}` of {self.path}", shape, number, partial(self._open, name, shape, number)
        )

    def _dim(self, name: str, rows: int) -> int:
        """Return the length of the arrays in a column; 0 where it holds none."""
        kind = parquet_schema(self.path)[name]
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
        row_bytes = dim * np.dtype(number).itemsize
        start = 0
        for length in _together(self._row_groups, row_bytes):
            with self._failures():
                column = (
                    scan_parquet(self.path).select(name).slice(start, length).collect().to_series()
                )
                if column.null_count() or column.explode(empty_as_null=True).null_count():
                    raise self._refusal(f"`{name}` has missing values")
                if isinstance(column.dtype, pl.List):
                    column = column.list.to_array(dim)
                block = np.ascontiguousarray(column.to_numpy(), dtype=number)
            if block.shape != (length, dim):
                raise self._refusal(f"`{name}` holds rows of different lengths")
            yield block.data.cast("B")
            start += length

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
    def _row_groups(self) -> tuple[int, ...]:
        """Return the rows of the row groups of the file, whose pages bear out what it declares."""
        with self.path.open("rb") as file:
            if not file.seek(0, 2):
                raise ValueError("it is empty")
            with mmap(file.fileno(), 0, access=ACCESS_READ) as content:
                parquet_size(content, nested=True)
                return row_groups(content)

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


def _together(lengths: Sequence[int], row_bytes: int) -> Iterator[int]:
    """Yield the rows of neighbouring row groups, as many as are read at once."""
    rows = 0
    for length in lengths:
        if rows and (rows + length) * row_bytes > _BLOCK_BYTES:
            yield rows
            rows = 0
        rows += length
    if rows:
        yield rows

"""Read Parquet files of features.

One column contains features (arrays or lists of equal length), another labels. Parquet gives no
fast access to single rows, so the features are first copied to a plain file, in blocks.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from clinit.errors import CacheError
from clinit.extract.arrays.array_file import (
    Labels,
    StoredFeatures,
    parse_class_names,
    spooled,
)
from clinit.extract.dataset.parquet import DAMAGE, row_count, scan_parquet

_FLOATS: dict[Any, str] = {pl.Float16: "float16", pl.Float32: "float32", pl.Float64: "float64"}
_BLOCK_BYTES = 2**24


@dataclass(frozen=True)
class ParquetFile:
    """A Parquet file."""

    path: Path

    def names(self) -> tuple[str, ...]:
        """Return the names of the columns."""
        return tuple(self._columns[0])

    def features(self, name: str) -> StoredFeatures:
        """Return a column of arrays, which is copied when it is opened."""
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
        """Return a column of labels: an array of integers, or a list of texts."""
        with self._failures():
            column = scan_parquet(self.path).select(name).collect().to_series()
            if column.null_count():
                raise ValueError(f"`{name}` has missing values")
            if column.dtype.is_integer():
                return column.to_numpy()
            if isinstance(column.dtype, pl.String | pl.Categorical | pl.Enum):
                return column.cast(pl.String).to_list()
            raise ValueError(f"`{name}` contains {column.dtype}, expected integers or texts")

    def class_names(self) -> tuple[str, ...] | None:
        """Return the JSON list `class_names` in the file's metadata, if any."""
        with self._failures():
            text = pl.read_parquet_metadata(self.path).get("class_names")
        return None if text is None else parse_class_names(text, self.path)

    @cached_property
    def _columns(self) -> tuple[Mapping[str, Any], int]:
        with self._failures():
            table = scan_parquet(self.path)
            rows = row_count(table, self.path.stat().st_size)
            if not rows:
                raise ValueError("it contains no rows")
            return table.collect_schema(), rows

    @contextmanager
    def _failures(self) -> Iterator[None]:
        try:
            yield
        except DAMAGE as error:
            raise CacheError(
                f"cannot read {self.path} as a table of features: {str(error)[:300]}",
                remedy="Write one row per sample: a column of arrays of floats, all of one length,"
                " and a column of labels that are integers or texts.",
            ) from error

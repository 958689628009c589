"""Read Parquet files of features.

One column contains features (arrays or lists of equal length), another labels. Parquet gives no
fast access to single rows, so a column is read into memory as a whole.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import polars as pl

from clinit.errors import CacheError
from clinit.extract.arrays.array_file import ArrayFile, Labels
from clinit.extract.dataset.parquet import DAMAGE, row_count, scan_parquet


class ParquetFile(ArrayFile):
    """A Parquet file."""

    __slots__ = ()

    def names(self) -> tuple[str, ...]:
        """Return the names of the columns."""
        with self._failures():
            table = scan_parquet(self.path)
            if not row_count(table, self.path.stat().st_size):
                raise ValueError("it contains no rows")
            return tuple(table.collect_schema())

    def array(self, name: str) -> np.ndarray:
        """Read a column."""
        column = self._column(name)
        with self._failures():
            if isinstance(column.dtype, pl.List):
                column = column.list.to_array(len(column[0]))
            return column.to_numpy()

    def labels(self, name: str) -> Labels:
        """Read a column of labels."""
        column = self._column(name)
        if isinstance(column.dtype, pl.String | pl.Categorical | pl.Enum):
            return column.cast(pl.String).to_list()
        return super().labels(name)

    def metadata(self) -> dict[str, str]:
        """Return the metadata of the file."""
        with self._failures():
            return pl.read_parquet_metadata(self.path)

    def _column(self, name: str) -> pl.Series:
        with self._failures():
            column = scan_parquet(self.path).select(name).collect().to_series()
            nested = isinstance(column.dtype, pl.List | pl.Array)
            inner = column.explode(empty_as_null=True) if nested else column
            if column.null_count() or inner.null_count():
                raise ValueError(f"`{name}` has missing values")
            return column

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

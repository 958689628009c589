"""A Parquet file with one row per row of the cache, and class names in the metadata.

Columns: `row` of the cache and of its manifest, `path`, `label`, `class_name`, and `features`, an
array of fixed length. A shard becomes a row group.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from polars.io.plugins import register_io_source

from clinit.extract.exports.rows import ExportedRows
from clinit.files.commit import commit_file
from clinit.files.lock import claim_file


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
                row_group_size=self._exported.split.plan.shard_rows,
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
        "features": pl.Array(number, exported.split.dim),
    }


def _frame(rows: np.ndarray, features: np.ndarray, exported: ExportedRows) -> pl.DataFrame:
    images = exported.split.manifest.table[int(rows[0]) : int(rows[-1]) + 1]
    if len(images) > len(rows):
        images = images[rows - rows[0]]
    schema = _schema(exported)
    columns = images.select("path", "label", "class_name").with_columns(
        row=pl.Series(rows), features=pl.Series(features, dtype=schema["features"])
    )
    return columns.select(*schema)

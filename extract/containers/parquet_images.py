"""Images out of Parquet files, some consecutive rows at a time.

polars reads the row group of a row whole, so a single row costs as much as a hundred. Rows of
such a manifest stand in the order of the files; a block of them is read once, by the thread that
comes first, and the others wait for it.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from concurrent.futures import Future
from pathlib import Path

import polars as pl

from clinit.errors import ImageError, ManifestError
from clinit.extract.containers.container import BUILD_AGAIN, Container
from clinit.extract.containers.parquet_table import count_rows
from clinit.extract.parquet_scan import parquet_schema, scan_parquet

BLOCK_ROWS = 64
BLOCKS_KEPT = 8
"""More than lie between the first and the last of the rows that threads are at."""
_REMEDY = "Replace the file and extract into a new folder, or leave its row invalid."


def read_images(path: Path, column: str, first: int, rows: int) -> pl.Series:
    """Return the content of consecutive images; null where the file has none.

    Raises:
        PolarsError: If the file is damaged.
        OSError: If it cannot be read.
    """
    image = pl.col(column)
    if isinstance(parquet_schema(path)[column], pl.Struct):
        image = image.struct.field("bytes")
    frame = scan_parquet(path).slice(first, rows).select(image)
    return frame.collect().to_series()


class ParquetImages:
    """Rows of Parquet files, for several threads."""

    def __init__(self) -> None:
        self._blocks = OrderedDict[tuple[Container, int], Future[list[bytes | ImageError]]]()
        self._rows = dict[Container, int]()
        self._lock = threading.Lock()

    def read(self, container: Container, row: int) -> bytes:
        """Return the content of the image in a row of a container.

        Raises:
            ImageError: If there is none, or it cannot be read.
            ManifestError: If the file is not the one of the manifest.
            StorageError: If it cannot be opened.
            OSError: If it cannot be read.
        """
        images = self._block(container, row // BLOCK_ROWS)
        image = images[row % BLOCK_ROWS] if row % BLOCK_ROWS < len(images) else None
        if image is None:
            raise ManifestError(
                f"{container.path} has no row {row:,}, which the manifest names",
                remedy=BUILD_AGAIN,
            )
        if isinstance(image, ImageError):
            raise image
        return image

    def _block(self, container: Container, block: int) -> list[bytes | ImageError]:
        with self._lock:
            future = self._blocks.get((container, block))
            is_first = future is None
            if future is None:
                future = self._blocks[container, block] = Future()
                if len(self._blocks) > BLOCKS_KEPT:
                    self._blocks.popitem(last=False)
            else:
                self._blocks.move_to_end((container, block))
        if is_first:
            try:
                future.set_result(self._load(container, block * BLOCK_ROWS))
            except BaseException as error:  # those who wait must not wait for ever
                future.set_exception(error)
        return future.result()

    def _load(self, container: Container, first: int) -> list[bytes | ImageError]:
        """Read a block; where it is damaged, row by row."""
        container.check_size(container.path.stat().st_size)
        rows = self._rows.get(container)
        if rows is None:
            rows = self._rows[container] = count_rows(container.path, container.column)
        count = max(0, min(BLOCK_ROWS, rows - first))
        try:
            found = read_images(container.path, container.column, first, count).to_list()
        except (pl.exceptions.PolarsError, pl.exceptions.PanicException) as error:
            if count <= 1:
                return [_unreadable(error)] * count
            return [self._one(container, first + row) for row in range(count)]
        return [image if image is not None else _none() for image in found]

    def _one(self, container: Container, row: int) -> bytes | ImageError:
        try:
            (image,) = read_images(container.path, container.column, row, 1)
        except (pl.exceptions.PolarsError, pl.exceptions.PanicException) as error:
            return _unreadable(error)
        return image if image is not None else _none()


def _none() -> ImageError:
    return ImageError("the Parquet file holds no bytes for it", remedy=_REMEDY)


def _unreadable(error: BaseException) -> ImageError:
    why = str(error).partition("\n")[0]
    return ImageError(f"cannot be read from the Parquet file: {why}", remedy=_REMEDY)

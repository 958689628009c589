"""Parquet files of images: find and read their images and labels.

The Hugging Face library writes an image as a structure of `bytes` and `path`. It describes the
columns in JSON under the key `huggingface` of the file's metadata: `{"info": {"features": {...}}}`
with `{"_type": "Image"}` and `{"_type": "ClassLabel", "names": [...]}`. Files of other programs
have a binary column and often no description.

Source: `datasets.features` of the library Hugging Face Datasets.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, lru_cache, partial
from pathlib import Path
from threading import Lock
from typing import Any

import msgspec
import polars as pl

from clinit.errors import ImageError, ManifestError
from clinit.extract.dataset.known import ColumnNames
from clinit.extract.dataset.manifest import BUILD_AGAIN, CONTENT_SCHEMA, Container, Contents
from clinit.files.arrays import DAMAGE, reading, row_count, scan_parquet
from clinit.words import printable

IMAGE_NAMES = ("image", "img", "jpg", "jpeg", "png", "webp", "bytes")
LABEL_NAMES = ("label", "labels", "cls", "class", "target", "class_name")
"""Column names to look for, in this order, if the file does not describe its columns."""
Features = Mapping[str, Any]
"""Column -> its description by the Hugging Face library."""
Schema = Mapping[str, object]
"""Column -> its type."""


def index_parquet(path: Path, columns: ColumnNames) -> Contents:
    """Find the columns of images and labels in a Parquet file, and read the labels.

    Args:
        path: The file.
        columns: Names of the columns, if the user gives them.

    Raises:
        ManifestError: If the file is damaged or not a Parquet file, the columns cannot be found,
            or labels are neither integers nor texts.
        StorageError: If the file cannot be read.
    """
    with _readable(path):
        schema = scan_parquet(path).collect_schema()
        features = _described(pl.read_parquet_metadata(path))
        fitting = [name for name in schema if _is_image(schema, name)]
        image = columns.image or _find(path, features, "Image", IMAGE_NAMES, fitting)
        label = columns.label or _find(path, features, "ClassLabel", LABEL_NAMES, [*schema])
        absent = {image, label} - {*schema}
        if absent or image not in fitting:
            found = f"no column {absent.pop()!r}" if absent else f"no images in {image!r}"
            raise ManifestError(
                f"{printable(path)} has {found}; its columns are {', '.join(schema)}",
                remedy="Name one with `--image-column` (binary, or a structure of bytes and path)"
                " and one with `--label-column`.",
            )
        rows = row_count(scan_parquet(path), path.stat().st_size)
        labels = scan_parquet(path).select(label).collect().to_series()
    is_number = labels.dtype.is_integer()
    if not is_number and not isinstance(labels.dtype, pl.String | pl.Categorical | pl.Enum):
        raise ManifestError(
            f"the column {label!r} of {printable(path)} contains {labels.dtype}, expected integers"
            " or texts",
            remedy="Name the column of the classes with `--label-column`.",
        )
    row = pl.int_range(rows, eager=True)
    told = labels.cast(pl.Int64 if is_number else pl.String, strict=False)
    table = pl.DataFrame({"member": row.cast(pl.String), "position": row}).with_columns(
        pl.lit(0).alias("size_bytes"),
        (told if is_number else pl.lit(None)).alias("index"),
        (pl.lit(None) if is_number else told).alias("name"),
    )
    names = features.get(label)
    return Contents(
        table.cast(CONTENT_SCHEMA), image, _names(names) if _is(names, "ClassLabel") else None
    )


_readable = partial(
    reading,
    what="a Parquet file",
    error=ManifestError,
    remedy="Copy or write the file again, then run the same command again.",
)


def _is_image(schema: Schema, column: str) -> bool:
    """Return whether a column may contain image files, by its type."""
    kind = schema.get(column)
    if isinstance(kind, pl.Struct):
        return any(field.name == "bytes" and field.dtype == pl.Binary for field in kind.fields)
    return kind == pl.Binary


def _described(metadata: dict[str, str]) -> Features:
    try:
        info = msgspec.json.decode(metadata.get("huggingface", "{}"), type=dict[str, Any])
        return msgspec.convert(info["info"]["features"], dict[str, Any])
    except (msgspec.DecodeError, RecursionError, KeyError, TypeError):
        return {}


def _find(
    path: Path, features: Features, kind: str, usual: Sequence[str], fitting: Sequence[str]
) -> str:
    """Return the column described as `kind`, else the first usual name, else the only image column.

    Args:
        path: The file.
        features: Description of its columns.
        kind: Image or ClassLabel.
        usual: Usual names of such columns.
        fitting: Columns of a possible type.
    """
    described = [name for name in fitting if _is(features.get(name), kind)]
    named = [name for name in usual if name in fitting]
    choice = described or named[:1] or (fitting if kind == "Image" else ())
    if len(choice) == 1:
        return choice[0]
    what = "image" if kind == "Image" else "label"
    told = f"{', '.join(choice)} are possible" if choice else "no column fits"
    raise ManifestError(
        f"clinit cannot choose the column of {what}s in {printable(path)}: {told}",
        remedy=f"Name it with `--{what}-column` of `clinit manifest build`, and give the manifest"
        " to `clinit extract --manifest`.",
    )


def _is(feature: object, kind: str) -> bool:
    return isinstance(feature, dict) and feature.get("_type") == kind


def _names(feature: Any) -> tuple[str, ...] | None:
    try:
        return msgspec.convert(feature.get("names"), tuple[str, ...])
    except msgspec.ValidationError:
        return None


BLOCK_ROWS = 64
BLOCKS_KEPT = 8
"""More blocks than threads read at a time, so that no block is read twice."""
_REMEDY = "Replace the file and extract into a new folder, or leave its row invalid."
_NO_BYTES = "its row in the Parquet file contains no bytes"
_ONLY_PATH = (
    f"{_NO_BYTES}, but the path of an image: write the file again with `dataset.with_format("
    "'arrow').map(datasets.table.embed_table_storage, batched=True).to_parquet(FILE)`"
)
"""The `to_parquet` of the Hugging Face library stores the path of an image that lies in a file."""


def read_images(path: Path, column: str, first: int, rows: int) -> list[Any]:
    """Return consecutive images: bytes, a structure of `bytes` and `path`, or None.

    Raises:
        PolarsError: If the file is damaged.
        OSError: If the file cannot be read.
    """
    return scan_parquet(path).slice(first, rows).select(column).collect().to_series().to_list()


@dataclass(slots=True, eq=False)
class _Block:
    """Consecutive images; the first thread that needs them reads them."""

    container: Container
    number: int
    lock: Lock = field(default_factory=Lock)
    images: list[bytes | ImageError] | None = None


class ParquetImages:
    """Reads images of Parquet files, in blocks of rows, for several threads."""

    def __init__(self) -> None:
        self._lock, self._block = Lock(), lru_cache(BLOCKS_KEPT)(_Block)
        self._num_rows = cache(_num_rows)

    def read(self, container: Container, row: int) -> bytes:
        """Return the content of the image in a row of a container.

        Raises:
            ImageError: If the row has no image, or it cannot be read.
            ManifestError: If the file differs from the manifest.
            StorageError: If the file cannot be opened.
            OSError: If the file cannot be read.
        """
        with self._lock:
            block = self._block(container, row // BLOCK_ROWS)
        with block.lock:
            if block.images is None:
                container.check_size(container.path.stat().st_size)
                first = block.number * BLOCK_ROWS
                count = max(0, min(BLOCK_ROWS, self._num_rows(container) - first))
                block.images = _images(container, first, count)
        if row % BLOCK_ROWS >= len(block.images):
            raise ManifestError(
                f"{container.path} has no row {row:,}, which the manifest lists", remedy=BUILD_AGAIN
            )
        image = block.images[row % BLOCK_ROWS]
        if isinstance(image, ImageError):
            raise image
        return image


def _num_rows(container: Container) -> int:
    with _readable(container.path):
        table = scan_parquet(container.path)
        if not _is_image(table.collect_schema(), container.column):
            raise ValueError(f"it has no column {container.column!r} of images")
        return row_count(table, container.size_bytes)


def _images(container: Container, first: int, count: int) -> list[bytes | ImageError]:
    """Read consecutive rows; if that fails, read them one by one."""
    try:
        found = read_images(container.path, container.column, first, count)
    except DAMAGE as error:
        if count > 1:
            return [_images(container, row, 1)[0] for row in range(first, first + count)]
        why = str(error).partition("\n")[0]
        return [ImageError(f"cannot be read from the Parquet file: {why}", remedy=_REMEDY)]
    cells = [each if isinstance(each, dict) else {"bytes": each} for each in found]
    for each in cells:
        if each["bytes"] is None:
            fault = _ONLY_PATH if each.get("path") else _NO_BYTES
            each["bytes"] = ImageError(fault, remedy=_REMEDY)
    return [each["bytes"] for each in cells]

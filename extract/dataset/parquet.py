"""What a Parquet file of images holds: the column of the images, and the classes.

The Hugging Face library writes an image as a structure of `bytes` and `path`, and describes the
columns in JSON under the key `huggingface` of the file's metadata: `{"info": {"features": {...}}}`
with `{"_type": "Image"}` and `{"_type": "ClassLabel", "names": [...]}`. Files of others have a
binary column, and say less.

Source: `datasets.features` of the library Hugging Face Datasets.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import polars as pl

from clinit.errors import ImageError, ManifestError
from clinit.extract.dataset.containers import BUILD_AGAIN, LABEL_SCHEMA, Container
from clinit.extract.dataset.known import Columns
from clinit.files.paths import check_readable
from clinit.words import printable

_FREE_ROWS, _ROWS_PER_BYTE = 2**20, 8
"""Rows that any file may declare, and what a larger one may by its size."""


def scan_parquet(path: Path) -> pl.LazyFrame:
    """Return the rows of one file; nothing is read yet, and no column comes from its folders."""
    return pl.scan_parquet(path, glob=False, hive_partitioning=False)


def row_count(table: pl.LazyFrame, size_bytes: int) -> int:
    """Return the rows that a file declares, from its metadata.

    Raises:
        ValueError: If they are more than a file of its size can hold: polars would reserve them.
        PolarsError: If it is damaged.
    """
    rows: int = table.select(pl.len()).collect().item()
    if rows > max(_FREE_ROWS, _ROWS_PER_BYTE * size_bytes):
        raise ValueError(f"it declares {rows:,} rows in {size_bytes:,} bytes")
    return rows


def parquet_schema(path: Path) -> dict[str, Any]:
    """Return the names and types of the columns of one file.

    Raises:
        PolarsError: If it is damaged.
        OSError: If it cannot be read.
    """
    return dict(scan_parquet(path).collect_schema())


IMAGE_NAMES = ("image", "img", "jpg", "jpeg", "png", "webp", "bytes")
LABEL_NAMES = ("label", "labels", "cls", "class", "target", "class_name")
"""Names of columns that are taken where nothing describes them, the first that is there."""
_FEATURES = "huggingface"
Features = dict[str, Any]
Schema = Mapping[str, object]
"""Column -> its type."""


@dataclass(frozen=True, slots=True)
class ParquetTable:
    """What is to be read of a Parquet file."""

    rows: int
    image: str
    """Column of the images."""
    label: str
    """Column of the labels."""
    class_names: tuple[str, ...] | None
    """Names of the classes in label order, where the file says them."""


def inspect_parquet(path: Path, columns: Columns, features: Features) -> ParquetTable:
    """Find the columns of images and labels in a Parquet file.

    Args:
        path: The file.
        columns: What the user says of them.
        features: Description of the columns beside the file, which counts where it has none.

    Raises:
        ManifestError: If it is no Parquet file, is damaged, or it is not clear which columns.
        StorageError: If it cannot be read.
    """
    check_readable(path, ManifestError)
    try:
        schema = parquet_schema(path)
        told = _features(pl.read_parquet_metadata(path)) or features
        image = columns.image or _image_column(path, schema, told)
        label = columns.label or _label_column(path, schema, told)
        for name in (image, label):
            if name not in schema:
                raise ManifestError(
                    f"{printable(path)} has no column {name!r}, but {', '.join(schema)}",
                    remedy="Name one of them with `--image-column` and `--label-column`.",
                )
        rows = row_count(scan_parquet(path), path.stat().st_size)
    except (ValueError, pl.exceptions.PolarsError, pl.exceptions.PanicException) as error:
        raise _damaged(path, error) from error
    if not is_image(schema, image):
        raise ManifestError(
            f"the column {image!r} of {printable(path)} holds {schema[image]}, expected the content"
            " of image files: binary, or a structure of bytes and path",
            remedy="Name the column of the images with `--image-column`.",
        )
    return ParquetTable(rows, image, label, _names(told.get(label)))


def count_rows(path: Path, image: str) -> int:
    """Return the number of rows of a Parquet file, once it is safe to read the images in it.

    Args:
        path: The file.
        image: Column of the images.

    Raises:
        ManifestError: If it is damaged or has no such column.
        StorageError: If it cannot be read.
    """
    check_readable(path, ManifestError)
    try:
        if not is_image(parquet_schema(path), image):
            raise ValueError(f"it has no column {image!r} of images")
        return row_count(scan_parquet(path), path.stat().st_size)
    except (ValueError, pl.exceptions.PolarsError, pl.exceptions.PanicException) as error:
        raise _damaged(path, error) from error


def read_labels(path: Path, table: ParquetTable) -> pl.DataFrame:
    """Return number and name of the class of each row (columns of `LABEL_SCHEMA`).

    Raises:
        ManifestError: If they cannot be read, or are neither integers nor texts.
    """
    try:
        found = scan_parquet(path).select(table.label).collect().to_series()
    except (OSError, pl.exceptions.PolarsError, pl.exceptions.PanicException) as error:
        raise _damaged(path, error) from error
    if isinstance(found.dtype, pl.Categorical | pl.Enum):
        found = found.cast(pl.String)
    if found.dtype.is_integer():
        index, name = found.cast(pl.Int64, strict=False), pl.Series([None], dtype=pl.String)
    elif found.dtype == pl.String:
        index, name = pl.Series([None], dtype=pl.Int64), found
    else:
        raise ManifestError(
            f"the column {table.label!r} of {printable(path)} holds {found.dtype}, expected"
            " integers or texts",
            remedy="Name the column of the classes with `--label-column`.",
        )
    whole = [each if len(each) == len(found) else each.new_from_index(0, len(found))
             for each in (index, name)]  # fmt: skip
    return pl.DataFrame([whole[0].alias("index"), whole[1].alias("name")], schema=LABEL_SCHEMA)


def features_of(document: object) -> Features:
    """Return the features of a description, `{"features": {...}}`; none where it has none."""
    if isinstance(document, dict) and isinstance(document.get("features"), dict):
        return {str(name): feature for name, feature in document["features"].items()}
    return {}


def is_image(schema: Schema, column: str) -> bool:
    """Return whether a column can hold the content of files."""
    kind = schema.get(column)
    if isinstance(kind, pl.Struct):
        return any(field.name == "bytes" and field.dtype == pl.Binary for field in kind.fields)
    return kind == pl.Binary


def _damaged(path: Path, error: BaseException) -> ManifestError:
    return ManifestError(
        f"{printable(path)} cannot be read as a Parquet file: {error}",
        remedy="Copy or write the file again, then run the same command again.",
    )


def _features(metadata: dict[str, str]) -> Features:
    try:
        document = msgspec.json.decode(metadata.get(_FEATURES, "{}"))
    except (msgspec.DecodeError, RecursionError):
        return {}
    return features_of(document.get("info")) if isinstance(document, dict) else {}


def _image_column(path: Path, schema: Schema, features: Features) -> str:
    described = [name for name in _of_type(features, "Image") if name in schema]
    fitting = described or [name for name in schema if is_image(schema, name)]
    named = [name for name in IMAGE_NAMES if name in fitting]
    if len(fitting) == 1 or (named and not described):
        return (named or fitting)[0]
    return _unclear(path, schema, fitting, "images", "--image-column")


def _label_column(path: Path, schema: Schema, features: Features) -> str:
    described = [name for name in _of_type(features, "ClassLabel") if name in schema]
    named = [name for name in LABEL_NAMES if name in schema]
    if len(described) == 1:
        return described[0]
    if not described and named:
        return named[0]
    return _unclear(path, schema, described, "labels", "--label-column")


def _unclear(path: Path, schema: Schema, fitting: Sequence[str], what: str, option: str) -> str:
    choice = f"{', '.join(fitting)} could be" if fitting else "no column seems to be"
    raise ManifestError(
        f"which column of {printable(path)} holds the {what} is not clear: {choice}; its columns"
        f" are {', '.join(schema)}",
        remedy=f"Name it with `{option}` of `clinit manifest build`, and give the manifest to"
        " `clinit extract --manifest`.",
    )


def _of_type(features: Features, kind: str) -> list[str]:
    return [n for n, feature in features.items() if _is_type(feature, kind)]


def _is_type(feature: object, kind: str) -> bool:
    return isinstance(feature, dict) and feature.get("_type") == kind


def _names(feature: object) -> tuple[str, ...] | None:
    if not isinstance(feature, dict) or not _is_type(feature, "ClassLabel"):
        return None
    names = feature.get("names")
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        return None
    return tuple(names)


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

"""Read files that other programs wrote: arrays, in one of the formats of `FORMATS`, and tables.

Arrays of `.npy` and safetensors files stay on the disk. An array of a `.npz` archive, which may be
compressed, is read into memory as a whole.

Sources: "A simple file format for NumPy arrays", `numpy.lib.format`; "Format" in the README of
huggingface/safetensors.
"""

from __future__ import annotations

import codecs
import json
import re
import tokenize
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import polars as pl
from jaxtyping import Float
from safetensors import SafetensorError, safe_open

from clinit.errors import CacheError, ClinitError, unreadable
from clinit.files.paths import check_readable, exists, instead_of
from clinit.files.text import MAX_NAME, is_text
from clinit.words import printable, size_text

DAMAGE = (ValueError, pl.exceptions.PolarsError, pl.exceptions.PanicException)
"""Errors that polars raises for a damaged file."""
_FREE_ROWS, _ROWS_PER_BYTE, _MOST_TEXT = 2**20, 8, 2**30
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

    The columns of text are texts. Excel writes UTF-16, and the separator in a line `sep=;`.

    Raises:
        OSError: If the file cannot be read.
        PolarsError, ValueError: If it is not such a table (`DAMAGE`).
    """
    size = path.stat().st_size
    if path.suffix.lower() == ".parquet":
        table = scan_parquet(path)
        return table.head(row_count(table, size)).collect()
    if size > _MOST_TEXT:
        raise ValueError(f"it is larger than {size_text(_MOST_TEXT)}")
    with path.open("rb") as file:
        head = file.readline(2**16)
    code = "utf-16" if head[:2] in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE) else "utf8"
    first = head.decode(code, "replace").lstrip("\ufeff")
    told = re.findall("^sep=([^\r\n])", first)
    sign = next((sign for sign in (*told, "\t", ",", ";") if sign in first), ",")
    return pl.read_csv(
        path, separator=sign, skip_rows=len(told), encoding=code, infer_schema=False, glob=False
    )


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


FEATURES, LABELS = ("features",), ("labels", "label")
"""Array names to look for if the user gives no name."""
ONE_PER_ROW = (
    "Give one integer or text per feature vector, in the same order: `labels.astype(int)`, of texts"
    " `labels.astype(str)`, `labels.ravel()`, or `labels.argmax(axis=1)` of one-hot rows."
)
BFLOAT16 = np.dtype([("bfloat16", "<u2")])
"""NumPy has no bfloat16, which is the upper half of a float32."""
_TYPES: dict[str, Any] = {
    **{"F16": "<f2", "BF16": BFLOAT16, "F32": "<f4", "F64": "<f8"},
    **{f"{kind.upper()}{8 * size}": f"<{kind}{size}" for kind in "iu" for size in (1, 2, 4, 8)},
}
"""Types of safetensors files."""
_MOST_TIMES, _SMALL = 50, 2**20
"""Features are random bits, which compress little; labels compress well, and are small."""
_DAMAGE = (
    *DAMAGE,
    *(OSError, SafetensorError, zipfile.BadZipFile, zlib.error, NotImplementedError, RuntimeError),
    *(KeyError, TypeError, EOFError, OverflowError, ZeroDivisionError, MemoryError),
    *(SyntaxError, tokenize.TokenError, RecursionError),
)
"""Errors of reading a damaged file: offsets may be impossible and arrays missing, and the header of
a `.npy` file is a Python expression."""


def _npy(path: Path, name: str) -> np.ndarray:
    """Map the array into memory; NumPy checks that the file is large enough for it."""
    with np.errstate(over="ignore"):  # a shape beyond 64 bits is refused as too large
        array = np.lib.format.open_memmap(path, mode="r")
    if not array.dtype.itemsize:
        raise ValueError(f"it declares {array.dtype} of shape {array.shape}")
    return array


def _npz(path: Path, name: str) -> np.ndarray:
    """Read an array; refuse one that is much larger than its file."""
    size = path.stat().st_size
    with zipfile.ZipFile(path) as archive:
        told = archive.getinfo(f"{name}.npy")
        if told.file_size > max(_MOST_TIMES * size, _SMALL) or told.compress_size > size:
            declared = size_text(told.file_size)
            raise ValueError(f"it declares {declared} in a file of {size_text(size)}")
        with archive.open(told) as file:
            return np.asarray(np.lib.format.read_array(file, allow_pickle=False))


def _header(path: Path) -> tuple[dict[str, Any], int]:
    """Return the header of a safetensors file, and the byte at which the tensors begin."""
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        return json.loads(file.read(length)), 8 + length


def _safetensors(path: Path, name: str) -> np.ndarray:
    """Map a tensor into memory."""
    header, start = _header(path)
    kind, shape, (begin, end) = (header[name][k] for k in ("dtype", "shape", "data_offsets"))
    if kind not in _TYPES or begin == end:
        raise ValueError(f"{kind} of shape {tuple(shape)}, expected floats or integers")
    return np.memmap(path, _TYPES[kind], "r", start + begin, tuple(shape))


FORMATS: Mapping[str, Callable[[Path, str], np.ndarray]] = {
    **{".npy": _npy, ".npz": _npz, ".safetensors": _safetensors}
}
"""Suffix of a file -> reads an array."""
_WRITERS = {
    ".npy": "`numpy.save(path, array)`; pickled objects are not read",
    ".npz": "`numpy.savez(path, features=…, labels=…)`; objects: `.astype(str)`, `.astype(float)`",
    ".safetensors": "`safetensors.numpy.save_file` or `safetensors.torch.save_file`",
}


@dataclass(frozen=True, slots=True)
class ArrayFile:
    """A file of arrays. All methods raise `CacheError` if the file is damaged."""

    path: Path
    suffix: str
    """Its format, among `FORMATS`."""

    def names(self) -> tuple[str, ...] | None:
        """Return the names of the arrays; None for a single array without a name."""
        with self._reading():
            if self.suffix == ".npz":
                with zipfile.ZipFile(self.path) as archive:
                    return tuple(name.removesuffix(".npy") for name in archive.namelist())
            if self.suffix == ".safetensors":
                with safe_open(self.path, framework="numpy") as file:  # checks the header
                    return tuple(sorted(file.keys()))
        return None

    def array(self, name: str) -> np.ndarray:
        """Return an array, on disk if the format allows that; numbers may be `BFLOAT16`."""
        with self._reading(f"`{name}`: " if name else ""):
            return FORMATS[self.suffix](self.path, name)

    def metadata(self) -> Mapping[str, str]:
        """Return the texts next to the arrays, if the format has a place for them."""
        with self._reading():
            header = _header(self.path)[0] if self.suffix == ".safetensors" else {}
            return header.get("__metadata__") or {}

    def find(self, given: str | None, usual: Sequence[str], option: str) -> str:
        """Return the name of the array that contains the features, or the labels.

        Args:
            given: The name that the user gives; None looks for the usual names.
            usual: The usual names.
            option: The option for the name, for messages.

        Raises:
            CacheError: If the file contains no such array; the message lists the existing arrays.
        """
        names = self.names()
        if names is None and given is None:
            return ""
        wanted = usual if given is None else (given,)
        for name in wanted:
            if name in (names or ()):
                return name
        there = "one array without a name" if names is None else ", ".join(names[:20]) or "no array"
        raise CacheError(
            f"{self.path} contains no {' or '.join(map(repr, wanted))}; it contains {there}",
            remedy=f"Choose an array with `{option} NAME`, or give another file.",
        )

    def class_names(self) -> tuple[str, ...] | None:
        """Return the JSON list `class_names` in the metadata, if any.

        Raises:
            CacheError: If it is not a list of texts, or a name occurs twice.
        """
        if (text := self.metadata().get("class_names")) is None:
            return None
        with suppress(msgspec.DecodeError, RecursionError):
            names = msgspec.json.decode(text, type=tuple[str, ...])
            wrong = any(len(name) > MAX_NAME or not is_text(name) for name in names)
            if names and not wrong and len(set(names)) == len(names):
                return names
        raise CacheError(
            f"`class_names` in the metadata of {self.path} is not a JSON list of different texts",
            remedy="Name the classes with `clinit cache import --classes FILE`, one per line.",
        )

    def features(self, name: str) -> Float[np.ndarray, "rows dim"] | np.ndarray:
        """Return an array of features, as `array` does.

        Raises:
            CacheError: If it does not contain rows of floats.
        """
        array = self.array(name)
        kind = "bfloat16" if array.dtype == BFLOAT16 else array.dtype.name
        floats = ("bfloat16", "float16", "float32", "float64")
        if array.ndim != 2 or 0 in array.shape or kind not in floats:
            raise CacheError(
                f"{self.origin(name)} contains {kind} of shape {array.shape}, expected floats"
                " (rows, dim), one row or more",
                remedy="Save one feature vector per row: `numpy.save(path, features)`.",
            )
        return array

    def labels(self, name: str) -> np.ndarray | list[str]:
        """Return an array of labels; texts become a list.

        Raises:
            CacheError: If it does not contain one integer or text per row.
        """
        array, origin = self.array(name), self.origin(name)
        if array.ndim != 1 or array.dtype.kind not in "iuUO":
            raise CacheError(
                f"{origin} contains {array.dtype} of shape {array.shape}, expected integers or"
                " text (rows,)",
                remedy=ONE_PER_ROW,
            )
        try:
            return list(map(str, array.tolist())) if array.dtype.kind in "UO" else np.array(array)
        except (SystemError, ValueError) as error:  # invalid Unicode code points
            raise CacheError(
                f"{origin} contains a label of invalid Unicode: {error}",
                remedy="Save valid Unicode.",
            ) from error

    def origin(self, name: str) -> str:
        """Return the array and the file, for messages."""
        return f"`{name}` of {self.path}" if name else f"{self.path}"

    @contextmanager
    def _reading(self, what: str = "") -> Iterator[None]:
        try:
            yield
        except _DAMAGE as error:
            raise CacheError(
                f"cannot read {self.path} as a {self.suffix} file: {what}{str(error)[:200]}",
                remedy=f"Write it with {_WRITERS[self.suffix]}.",
            ) from error


def open_arrays(path: Path) -> ArrayFile:
    """Return the file of arrays at `path`, whose format is its suffix.

    Raises:
        CacheError: If there is no file, or its suffix is not among `FORMATS`.
        StorageError: If the file cannot be read.
    """
    suffix = path.suffix.lower()
    if suffix not in FORMATS:
        raise CacheError(
            f"{path} has {f'the suffix {path.suffix!r}' if suffix else 'no suffix'}, expected one"
            f" of {', '.join(FORMATS)}",
            remedy="Save the features in one of these formats, such as with"
            " `numpy.save(path, tensor.numpy())` or `safetensors.torch.save_file`.",
        )
    if not exists(path):
        raise CacheError(
            f"no file at {path}", remedy=instead_of(path, "Check the spelling.", Path.is_file)
        )
    check_readable(path, CacheError)
    return ArrayFile(path, suffix)


def widened(features: np.ndarray) -> Float[np.ndarray, ...]:
    """Return features in float32, in the byte order of this machine.

    Values that float32 cannot represent become infinite, and their row invalid: a value that is too
    large, or all values of a row if all are so small that they would lose most of their bits.
    """
    if features.dtype == BFLOAT16:
        return (features["bfloat16"].astype(np.uint32) << 16).view(np.float32)
    with np.errstate(over="ignore", under="ignore"):
        narrow = np.asarray(features, dtype=np.float32)
    if features.dtype.itemsize > 4:
        largest = np.abs(features).max(axis=-1, initial=0)
        narrow[(largest > 0) & (largest < np.finfo(np.float32).smallest_normal)] = np.inf
    return narrow

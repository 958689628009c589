"""Open `.npy` files: their header is compared with their size before anything is reserved.

Source: "A simple file format for NumPy arrays", `numpy.lib.format`.
"""

from __future__ import annotations

import io
import math
import tokenize
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol, runtime_checkable

import numpy as np

from clinit.errors import LOOK_AT_STORAGE, CacheError, StorageError
from clinit.files.paths import check_readable

_MAX_HEADER = 10_000
_MAGIC = b"\x93NUMPY"
_READERS = {
    (1, 0): (2, np.lib.format.read_array_header_1_0),
    (2, 0): (4, np.lib.format.read_array_header_2_0),
}
"""Bytes of the length of the header, and who reads it, by version; version 3 is for tables with
named columns."""
_FROM_NUMPY = (
    ValueError,
    TypeError,
    SyntaxError,
    tokenize.TokenError,
    RecursionError,
    MemoryError,
)
"""The header is an expression of Python: that is what reading it raises."""


@runtime_checkable
class Readable(Protocol):
    """A file, or a member of an archive."""

    def read(self, size: int, /) -> bytes:
        """Return the next bytes."""
        ...


@dataclass(frozen=True, slots=True)
class NpyHeader:
    """What a `.npy` file says it holds."""

    shape: tuple[int, ...]
    dtype: np.dtype
    fortran_order: bool = field(default=False, compare=False)
    """Whether it is stored column by column."""

    @property
    def nbytes(self) -> int:
        """Bytes of the numbers."""
        return math.prod(self.shape) * self.dtype.itemsize


def read_npy_header(path: Path) -> NpyHeader:
    """Read the header of a `.npy` file whose content is as long as the header says.

    Raises:
        CacheError: If the file is none, holds Python objects or is too short.
        StorageError: If it cannot be read.
    """
    if path.exists():
        check_readable(path, CacheError)
    try:
        with path.open("rb") as file:
            header, offset = parse_npy(file)
        size = path.stat().st_size
    except FileNotFoundError as error:
        raise CacheError(f"no file at {path}", remedy="Check the spelling.") from error
    except OSError as error:
        raise StorageError(
            f"cannot read {path}: {error.strerror or error}", remedy=LOOK_AT_STORAGE
        ) from error
    except ValueError as error:
        raise _not_npy(path, str(error)) from error
    needed = offset + header.nbytes
    if needed > size:
        raise _not_npy(
            path, f"{header.dtype} of shape {header.shape} takes {needed:,} bytes, it has {size:,}"
        )
    return header


def open_npy(path: Path, *, mmap: bool) -> np.ndarray:
    """Open a file that `read_npy_header` has read.

    Args:
        path: The file.
        mmap: Whether to leave the numbers on the disk until they are used.

    Raises:
        CacheError: If it is no `.npy` file after all.
        StorageError: If it cannot be read.
    """
    try:
        return np.asarray(np.load(path, mmap_mode="r" if mmap else None, allow_pickle=False))
    except OSError as error:
        raise StorageError(
            f"cannot read {path}: {error.strerror or error}", remedy=LOOK_AT_STORAGE
        ) from error
    except (ValueError, EOFError) as error:
        raise _not_npy(path, str(error)) from error


def parse_npy(file: Readable) -> tuple[NpyHeader, int]:
    """Return the header at the begin of a file, and how many bytes it takes.

    The file is left at the first number.

    Raises:
        ValueError: If it cannot be read, or declares what is no array of numbers or texts.
    """
    start = file.read(8)
    if len(start) < 8 or start[:6] != _MAGIC:
        raise ValueError("it does not begin as one")
    version = (start[6], start[7])
    if version not in _READERS:
        raise ValueError(f"its version is {version[0]}.{version[1]}, expected 1.0 or 2.0")
    length_bytes, read = _READERS[version]
    length_field = file.read(length_bytes)
    length = int.from_bytes(length_field, "little")
    if length > _MAX_HEADER:
        raise ValueError(f"its header is {length:,} bytes long")
    try:
        shape, fortran_order, dtype = read(io.BytesIO(length_field + file.read(length)))
    except _FROM_NUMPY as error:
        raise ValueError("its header is damaged") from error
    if dtype.hasobject:
        raise ValueError("it holds Python objects")
    if min(shape, default=0) < 0 or dtype.itemsize == 0:
        raise ValueError(f"it declares {dtype} of shape {shape}")
    return NpyHeader(shape, dtype, fortran_order), len(start) + length_bytes + length


def _not_npy(path: Path, why: str) -> CacheError:
    return CacheError(
        f"cannot read {path} as a .npy file: {why}",
        remedy="Write it with `numpy.save(path, array)`; pickled objects are not read.",
    )

"""NumPy's files, read and written: `.npy` files, a folder of them, and `.npz` archives.

The header of an array is compared with the size of its file before anything is reserved. Members of
an archive may be compressed, so that features are copied before single rows can be read.

A cache is written as a folder: `features.npy` (rows, dim) float16 or float32, `labels.npy` and
`rows.npy` (rows,) int64, the latter the rows of the cache and of its manifest, and `classes.txt`,
one class name per line, in label order.

Source: "A simple file format for NumPy arrays", `numpy.lib.format`.
"""

from __future__ import annotations

import errno
import io
import math
import sys
import tokenize
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Literal, Protocol, runtime_checkable

import numpy as np

from clinit.errors import LOOK_AT_STORAGE, CacheError, StorageError
from clinit.extract.arrays.array_file import (
    ONE_PER_ROW,
    ExportedRows,
    Labels,
    StoredFeatures,
    Take,
    spooled,
    widened,
)
from clinit.files.commit import commit_file
from clinit.files.lock import claim_folder
from clinit.files.paths import check_readable
from clinit.files.text import lines_of

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


@dataclass(frozen=True, slots=True)
class NpyFile:
    """A `.npy` file."""

    path: Path

    def names(self) -> None:
        """Return None: the array has no name."""

    def features(self, name: str) -> StoredFeatures:
        """Return the array; its numbers stay on the disk until they are used."""
        header = read_npy_header(self.path)
        return StoredFeatures(str(self.path), header.shape, header.dtype.name, self._open)

    @contextmanager
    def _open(self, folder: Path) -> Iterator[Take]:
        features = open_npy(self.path, mmap=True)
        yield lambda rows: widened(features[rows])

    def labels(self, name: str) -> Labels:
        """Return the array: texts as a list."""
        check_labels(read_npy_header(self.path), str(self.path))
        return labels_of(open_npy(self.path, mmap=False), str(self.path))

    def class_names(self) -> None:
        """Return None: there is nothing but the array."""


def check_labels(header: NpyHeader, origin: str) -> None:
    """Check that an array holds integers or texts, one per row, before it is read.

    Raises:
        CacheError: If it does not.
    """
    if len(header.shape) != 1 or header.dtype.kind not in "iuU":
        raise CacheError(
            f"{origin} holds {header.dtype} of shape {header.shape}, expected integers or text"
            " (rows,)",
            remedy=ONE_PER_ROW,
        )


def labels_of(array: np.ndarray, origin: str) -> Labels:
    """Return an array of labels, texts as a list.

    Raises:
        CacheError: If texts hold numbers that are no characters.
    """
    if array.dtype.kind != "U":
        return array
    codes = np.ascontiguousarray(array).view(f"{array.dtype.byteorder}u4")
    if codes.max(initial=0) > sys.maxunicode:
        raise CacheError(
            f"{origin} holds what is no class name: the character {codes.max():#x}",
            remedy="Save texts.",
        )
    return list(map(str, array.tolist()))


_SUFFIX = ".npy"
_REMEDY = (
    "Write it with `numpy.savez(path, features=…, labels=…)`, the features in rows"
    " (`numpy.ascontiguousarray`)."
)
_BLOCK_BYTES = 2**24
_FREE_BYTES, _EXPANSION = 2**28, 256
"""What any array may have, and what a larger one may by its compressed size: deflate packs zeros
1,030-fold, features of which 0.5 % are not zero 106-fold."""
_FROM_ZIPFILE = (
    zipfile.BadZipFile,
    zlib.error,
    EOFError,
    NotImplementedError,
    RuntimeError,
    KeyError,  # a member that is no array, or a damaged name
)


@dataclass(frozen=True, slots=True)
class NpzFile:
    """A `.npz` file."""

    path: Path

    def names(self) -> tuple[str, ...]:
        """Return the names of the arrays."""
        with self._archive() as archive:
            members = archive.namelist()
        return tuple(name.removesuffix(_SUFFIX) for name in members)

    def features(self, name: str) -> StoredFeatures:
        """Return an array; opening it copies it."""
        with self._member(name) as (_, header):
            if header.fortran_order and len(header.shape) > 1:
                raise self._damaged(f"`{name}` is stored column by column")
        return StoredFeatures(
            f"`{name}` of {self.path}",
            header.shape,
            header.dtype.name,
            partial(self._open, name, header),
        )

    def _open(self, name: str, header: NpyHeader, folder: Path) -> AbstractContextManager[Take]:
        return spooled(self._blocks(name, header), header.shape, header.dtype, folder)

    def _blocks(self, name: str, header: NpyHeader) -> Iterator[bytes]:
        with self._member(name) as (file, _):
            left = header.nbytes
            while left:
                content = file.read(min(left, _BLOCK_BYTES))
                if not content:
                    raise self._damaged(f"`{name}` is truncated")
                left -= len(content)
                yield content

    def labels(self, name: str) -> Labels:
        """Return an array: texts as a list."""
        with self._member(name) as (_, header):
            check_labels(header, f"`{name}` of {self.path}")
        return labels_of(self.array(name), f"`{name}` of {self.path}")

    def array(self, name: str) -> np.ndarray:
        """Return an array as it is, all of it in memory."""
        with self._member(name) as (file, header):
            content = file.read(header.nbytes)
        if len(content) < header.nbytes:
            raise self._damaged(f"`{name}` is truncated")
        order: Literal["F", "C"] = "F" if header.fortran_order else "C"
        return np.frombuffer(content, dtype=header.dtype).reshape(header.shape, order=order)

    def class_names(self) -> None:
        """Return None: arrays alone are in the archive."""

    @contextmanager
    def _archive(self) -> Iterator[zipfile.ZipFile]:
        try:
            with zipfile.ZipFile(self.path) as archive:
                yield archive
        except _FROM_ZIPFILE as error:
            raise self._damaged(str(error)[:200]) from error
        except OSError as error:
            if error.errno != errno.EINVAL:  # a place in the file that cannot be one
                raise
            raise self._damaged("its directory is damaged") from error

    @contextmanager
    def _member(self, name: str) -> Iterator[tuple[Readable, NpyHeader]]:
        """Open an array behind its header, which the size in the directory bears out."""
        with self._archive() as archive, archive.open(f"{name}{_SUFFIX}") as file:
            info = archive.getinfo(f"{name}{_SUFFIX}")
            size = info.file_size
            try:
                header, offset = parse_npy(file)
            except ValueError as error:
                raise self._damaged(f"`{name}`: {error}") from error
            if offset + header.nbytes != size:
                raise self._damaged(
                    f"`{name}` declares {header.nbytes:,} bytes, {size - offset:,} are there"
                )
            if header.nbytes > max(_FREE_BYTES, _EXPANSION * info.compress_size):
                raise self._damaged(
                    f"`{name}` declares {header.nbytes:,} bytes, compressed to"
                    f" {info.compress_size:,}: so much is no array of features",
                    remedy="If it is one, write it without compression: `numpy.savez`.",
                )
            yield file, header

    def _damaged(self, why: str, remedy: str = _REMEDY) -> CacheError:
        return CacheError(f"cannot read {self.path} as a .npz file: {why}", remedy=remedy)


_FEATURES, _LABELS, _ROWS, _CLASSES = "features.npy", "labels.npy", "rows.npy", "classes.txt"


def write_npy(exported: ExportedRows, folder: Path) -> None:
    """Write rows into a folder; `features.npy` comes last, so where it is, all is.

    Raises:
        CacheError: If a class name cannot be a line of text, or a shard cannot be read.
        ClinitError: If the folder cannot be written.
    """
    names = exported.class_names
    _check_lines(names)
    text = "".join(f"{name}\n" for name in names).encode()
    with claim_folder(folder, leaves_lock=False):
        (folder / _FEATURES).unlink(missing_ok=True)  # of an earlier export
        commit_file(folder / _CLASSES, lambda draft: draft.write_bytes(text))
        _commit(folder / _LABELS, exported.labels)
        _commit(folder / _ROWS, exported.rows)
        commit_file(folder / _FEATURES, lambda draft: _write_features(exported, draft))


def _write_features(exported: ExportedRows, draft: Path) -> None:
    # Not through a memory map: a full disk would end the process without a word.
    shape = (len(exported.rows), exported.dim)
    header = {"descr": exported.dtype.str, "fortran_order": False, "shape": shape}
    with draft.open("wb") as file:
        np.lib.format.write_array_header_1_0(file, header)
        for _, features in exported.blocks():
            file.write(np.ascontiguousarray(features).data)


def _commit(path: Path, array: np.ndarray) -> None:
    def write(draft: Path) -> None:
        with draft.open("wb") as file:  # by name, NumPy would add the suffix
            np.save(file, array)

    commit_file(path, write)


def _check_lines(names: tuple[str, ...]) -> None:
    for name in names:
        if [name] != lines_of(name):
            raise CacheError(
                f"the class name {name!r} cannot be a line of {_CLASSES}",
                remedy="Export with `--format safetensors` or `--format parquet`: their names are"
                " not lines.",
            )

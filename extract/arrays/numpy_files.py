"""Read `.npy` and `.npz` files of NumPy, and write a folder of `.npy` files.

An array of a `.npz` archive is read into memory as a whole, because it may be compressed.

An exported split is a folder with `features.npy` (rows, dim) float16 or float32, `labels.npy`
(rows,) int64, `rows.npy` (rows,) int64 (row numbers in the cache and its manifest), and
`classes.txt` with one class name per line, in label order.

Source: "A simple file format for NumPy arrays", `numpy.lib.format`.
"""

from __future__ import annotations

import tokenize
import zipfile
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from clinit.errors import CacheError, unreadable
from clinit.extract.arrays.array_file import (
    ONE_PER_ROW,
    ExportedRows,
    Labels,
    StoredFeatures,
    widened,
)
from clinit.files.commit import commit_file
from clinit.files.lock import claim_folder
from clinit.files.text import lines_of
from clinit.words import size_text

_FROM_NUMPY = (
    *(ValueError, TypeError, SyntaxError, tokenize.TokenError, RecursionError, MemoryError),
    *(EOFError, OverflowError, ZeroDivisionError),
)
"""Errors of reading a damaged header, which is a Python expression."""


@dataclass(frozen=True, slots=True)
class NpyFile:
    """A `.npy` file."""

    path: Path

    def names(self) -> None:
        """Return None, because the array has no name."""

    def features(self, name: str) -> StoredFeatures:
        """Return the array, whose numbers stay on disk until they are used."""
        array = self._array()
        return StoredFeatures(
            str(self.path),
            array.shape,
            array.dtype.name,
            lambda folder: nullcontext(lambda rows: widened(array[rows])),
        )

    def labels(self, name: str) -> Labels:
        """Return the labels; texts become a list."""
        array = self._array()
        _check_labels(array.shape, array.dtype, str(self.path))
        return _labels_of(np.array(array), str(self.path))

    def class_names(self) -> None:
        """Return None, because the file contains only the array."""

    def _array(self) -> np.ndarray:
        """Map the file into memory; NumPy checks that it is large enough for the array."""
        try:
            with np.errstate(over="ignore"):  # a shape beyond 64 bits is refused as too large
                array = np.lib.format.open_memmap(self.path, mode="r")
            if not array.dtype.itemsize:
                raise ValueError(f"it declares {array.dtype} of shape {array.shape}")
            return array
        except OSError as error:
            raise unreadable(self.path, error) from error
        except _FROM_NUMPY as error:
            raise CacheError(
                f"cannot read {self.path} as a .npy file: {str(error)[:200]}",
                remedy="Write it with `numpy.save(path, array)`; pickled objects are not read.",
            ) from error


def _check_labels(shape: tuple[int, ...], dtype: np.dtype, origin: str) -> None:
    """Check that an array contains one integer or text per row, before it is read."""
    if len(shape) != 1 or dtype.kind not in "iuU":
        raise CacheError(
            f"{origin} contains {dtype} of shape {shape}, expected integers or text (rows,)",
            remedy=ONE_PER_ROW,
        )


def _labels_of(array: np.ndarray, origin: str) -> Labels:
    try:
        return list(map(str, array.tolist())) if array.dtype.kind == "U" else array
    except (SystemError, ValueError) as error:  # invalid Unicode code points
        raise CacheError(
            f"{origin} contains a label of invalid Unicode: {error}", remedy="Save valid Unicode."
        ) from error


_MOST_TIMES, _SMALL = 50, 2**20
"""Features are random bits, which compress little; labels compress well, and are small."""
_FROM_ZIPFILE = (
    *(zipfile.BadZipFile, zlib.error, NotImplementedError, RuntimeError, KeyError, OSError),
    *_FROM_NUMPY,
)
"""Errors of reading a damaged archive; KeyError means that an array is missing, OSError that an
offset is impossible."""


@dataclass(frozen=True, slots=True)
class NpzFile:
    """A `.npz` file."""

    path: Path

    def names(self) -> tuple[str, ...]:
        """Return the names of the arrays."""
        with self._failures(), zipfile.ZipFile(self.path) as archive:
            return tuple(name.removesuffix(".npy") for name in archive.namelist())

    def features(self, name: str) -> StoredFeatures:
        """Read an array into memory; return it."""
        array = self.array(name)
        return StoredFeatures(
            f"`{name}` of {self.path}",
            array.shape,
            array.dtype.name,
            lambda folder: nullcontext(lambda rows: widened(array[rows])),
        )

    def labels(self, name: str) -> Labels:
        """Return an array of labels; texts become a list."""
        array, origin = self.array(name), f"`{name}` of {self.path}"
        _check_labels(array.shape, array.dtype, origin)
        return _labels_of(array, origin)

    def array(self, name: str) -> np.ndarray:
        """Read the array `name` without any check."""
        with (
            self._failures(f"`{name}`: "),
            zipfile.ZipFile(self.path) as archive,
            archive.open(f"{name}.npy") as file,
        ):
            self._check_room(archive.getinfo(f"{name}.npy"))
            array: np.ndarray = np.lib.format.read_array(file, allow_pickle=False)
            return array

    def _check_room(self, told: zipfile.ZipInfo) -> None:
        """Refuse an array that is much larger than its file before memory is asked for."""
        size = self.path.stat().st_size
        if told.file_size > max(_MOST_TIMES * size, _SMALL) or told.compress_size > size:
            raise ValueError(
                f"it declares {size_text(told.file_size)} in a file of {size_text(size)}"
            )

    def class_names(self) -> None:
        """Return None, because an archive contains only arrays."""

    @contextmanager
    def _failures(self, name: str = "") -> Iterator[None]:
        try:
            yield
        except _FROM_ZIPFILE as error:
            raise CacheError(
                f"cannot read {self.path} as a .npz file: {name}{str(error)[:200]}",
                remedy="Write it with `numpy.savez(path, features=…, labels=…)`.",
            ) from error


_FEATURES, _CLASSES = "features.npy", "classes.txt"


def write_npy(exported: ExportedRows, folder: Path) -> None:
    """Write rows into a folder; `features.npy` is last, so if it exists, all files exist.

    Raises:
        CacheError: If a class name cannot be a line of text, or a shard cannot be read.
        ClinitError: If the folder cannot be written.
    """
    for name in exported.class_names:
        if [name] != lines_of(name):
            raise CacheError(
                f"the class name {name!r} cannot be a line of {_CLASSES}",
                remedy="Export with `--format safetensors`, which can store any name.",
            )
    text = "".join(f"{name}\n" for name in exported.class_names).encode()
    with claim_folder(folder, leaves_lock=False):
        (folder / _FEATURES).unlink(missing_ok=True)  # left by an earlier export
        commit_file(folder / _CLASSES, lambda draft: draft.write_bytes(text))
        for name, numbers in (("labels.npy", exported.labels), ("rows.npy", exported.rows)):
            _commit(folder / name, numbers.shape, np.dtype("<i8"), [numbers])
        shape = (len(exported.rows), exported.dim)
        _commit(folder / _FEATURES, shape, exported.dtype, exported.blocks())


def _commit(
    path: Path, shape: tuple[int, ...], dtype: np.dtype, blocks: Iterable[np.ndarray]
) -> None:
    """Write an array; on a full disk, a memory map would kill the process silently."""

    def write(draft: Path) -> None:
        with draft.open("wb") as file:
            header = {"descr": dtype.str, "fortran_order": False, "shape": shape}
            np.lib.format.write_array_header_1_0(file, header)
            for block in blocks:
                file.write(np.ascontiguousarray(block, dtype=dtype).data)

    commit_file(path, write)

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
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from clinit.errors import CacheError, unreadable
from clinit.extract.arrays.array_file import ArrayFile, ExportedRows
from clinit.files.commit import commit_file
from clinit.files.lock import claim_folder
from clinit.files.text import lines_of
from clinit.words import size_text

_FROM_NUMPY = (
    *(ValueError, TypeError, SyntaxError, tokenize.TokenError, RecursionError, MemoryError),
    *(EOFError, OverflowError, ZeroDivisionError),
)
"""Errors of reading a damaged header, which is a Python expression."""


class NpyFile(ArrayFile):
    """A `.npy` file."""

    __slots__ = ()

    def names(self) -> None:
        """Return None, because the array has no name."""

    def array(self, name: str) -> np.ndarray:
        """Map the array into memory; NumPy checks that the file is large enough for it."""
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


_MOST_TIMES, _SMALL = 50, 2**20
"""Features are random bits, which compress little; labels compress well, and are small."""
_FROM_ZIPFILE = (
    *(zipfile.BadZipFile, zlib.error, NotImplementedError, RuntimeError, KeyError, OSError),
    *_FROM_NUMPY,
)
"""Errors of reading a damaged archive; KeyError means that an array is missing, OSError that an
offset is impossible."""


class NpzFile(ArrayFile):
    """A `.npz` file."""

    __slots__ = ()

    def names(self) -> tuple[str, ...]:
        """Return the names of the arrays."""
        with self._failures(), zipfile.ZipFile(self.path) as archive:
            return tuple(name.removesuffix(".npy") for name in archive.namelist())

    def array(self, name: str) -> np.ndarray:
        """Read an array; refuse one that is much larger than its file."""
        size = self.path.stat().st_size
        with self._failures(f"`{name}`: "), zipfile.ZipFile(self.path) as archive:
            told = archive.getinfo(f"{name}.npy")
            if told.file_size > max(_MOST_TIMES * size, _SMALL) or told.compress_size > size:
                raise ValueError(
                    f"it declares {size_text(told.file_size)} in a file of {size_text(size)}"
                )
            with archive.open(told) as file:
                array: np.ndarray = np.lib.format.read_array(file, allow_pickle=False)
                return array

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

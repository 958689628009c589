"""Read and write safetensors files of features.

An exported file contains the tensors `features`, `labels` and `rows`, and class names in its
metadata. It is written here a shard at a time, because the library would need all features in
memory.

Source: "Format" in the README of huggingface/safetensors.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open

from clinit.errors import CacheError
from clinit.extract.arrays.array_file import (
    BFLOAT16,
    ONE_PER_ROW,
    ArrayFile,
    ExportedRows,
)
from clinit.files.commit import commit_file
from clinit.files.lock import claim_file

_TYPES: dict[str, Any] = {
    **{"F16": "<f2", "BF16": BFLOAT16, "F32": "<f4", "F64": "<f8"},
    **{f"{kind.upper()}{8 * size}": f"<{kind}{size}" for kind in "iu" for size in (1, 2, 4, 8)},
}


class SafetensorsFile(ArrayFile):
    """A safetensors file."""

    __slots__ = ()

    def names(self) -> tuple[str, ...]:
        """Return the names of the tensors; the library checks the header."""
        try:
            with safe_open(self.path, framework="numpy") as file:
                return tuple(sorted(file.keys()))
        except (SafetensorError, OSError, ValueError, RecursionError) as error:
            raise CacheError(
                f"cannot read {self.path} as a safetensors file: {str(error)[:200]}",
                remedy="Write it with `safetensors.numpy.save_file` or `safetensors.torch"
                ".save_file`.",
            ) from error

    def array(self, name: str) -> np.ndarray:
        """Map a tensor into memory."""
        content, start = self._header()
        kind, shape, (begin, end) = (content[name][k] for k in ("dtype", "shape", "data_offsets"))
        if kind not in _TYPES or begin == end:
            raise CacheError(
                f"{self._origin(name)} contains {kind} of shape {tuple(shape)}, expected floats"
                " (rows, dim), or integers (rows,)",
                remedy=ONE_PER_ROW,
            )
        array: np.ndarray = np.memmap(self.path, _TYPES[kind], "r", start + begin, tuple(shape))
        return array

    def metadata(self) -> dict[str, str]:
        """Return the metadata of the file."""
        return self._header()[0].get("__metadata__") or {}

    def _header(self) -> tuple[dict[str, Any], int]:
        """Return the header, and the byte of the file at which the tensors begin."""
        with self.path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            return json.loads(file.read(length)), 8 + length


_WRITTEN_TYPES: dict[str, Any] = {"float16": "F16", "float32": "F32", "int64": "I64"}
_ALIGNMENT = 8


def write_safetensors(exported: ExportedRows, path: Path) -> None:
    """Write rows into a safetensors file, atomically.

    Raises:
        CacheError: If a shard cannot be read.
        ClinitError: If the file cannot be written.
    """

    def write(draft: Path) -> None:
        with draft.open("wb") as file:
            file.write(_written_header(exported))
            file.write(exported.labels.astype("<i8").data)
            file.write(exported.rows.astype("<i8").data)
            for features in exported.blocks():
                file.write(np.ascontiguousarray(features).data)

    with claim_file(path):
        commit_file(path, write)


def _written_header(exported: ExportedRows) -> bytes:
    """Return the length of the header followed by the header, padded to align the tensors."""
    rows, begin = len(exported.rows), 0
    content: dict[str, Any] = {"__metadata__": exported.metadata}
    for name, shape, dtype in (
        ("labels", [rows], np.dtype(np.int64)),
        ("rows", [rows], np.dtype(np.int64)),
        ("features", [rows, exported.dim], exported.dtype),
    ):
        end = begin + int(np.prod(shape)) * dtype.itemsize
        content[name] = {
            "dtype": _WRITTEN_TYPES[dtype.name],
            "shape": shape,
            "data_offsets": [begin, end],
        }
        begin = end
    text = json.dumps(content, ensure_ascii=False).encode()
    text += b" " * (-len(text) % _ALIGNMENT)
    return len(text).to_bytes(8, "little") + text

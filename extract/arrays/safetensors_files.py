"""Read and write safetensors files of features.

An exported file contains the tensors `features`, `labels` and `rows`, and class names in its
metadata. It is written here a shard at a time, because the library would need all features in
memory.

Source: "Format" in the README of huggingface/safetensors.
"""

from __future__ import annotations

import json
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open

from clinit.errors import CacheError
from clinit.extract.arrays.array_file import (
    ONE_PER_ROW,
    ExportedRows,
    Labels,
    StoredFeatures,
    parse_class_names,
    widened,
)
from clinit.files.commit import commit_file
from clinit.files.lock import claim_file

_TYPES = {
    **{"F16": "float16", "BF16": "bfloat16", "F32": "float32", "F64": "float64"},
    **{f"I{bits}": f"int{bits}" for bits in (8, 16, 32, 64)},
    **{f"U{bits}": f"uint{bits}" for bits in (8, 16, 32, 64)},
}


@dataclass(frozen=True, slots=True)
class SafetensorsFile:
    """A safetensors file."""

    path: Path

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

    def features(self, name: str) -> StoredFeatures:
        """Return a tensor, whose numbers stay on disk until they are used."""
        shape, dtype, begin = self._tensor(name)

        def take(rows: np.ndarray) -> np.ndarray:
            # NumPy has no bfloat16, which is the upper half of a float32.
            kind = "<u2" if dtype == "bfloat16" else np.dtype(dtype).newbyteorder("<")
            stored = np.memmap(self.path, dtype=kind, mode="r", offset=begin, shape=shape)[rows]
            if dtype != "bfloat16":
                return widened(stored)
            picked: np.ndarray = (stored.astype(np.uint32) << 16).view(np.float32)
            return picked

        origin = f"`{name}` of {self.path}"
        return StoredFeatures(origin, shape, dtype, lambda folder: nullcontext(take))

    def labels(self, name: str) -> Labels:
        """Return a tensor of labels."""
        shape, dtype, begin = self._tensor(name)
        if not dtype.lstrip("u").startswith("int") or len(shape) != 1:
            raise CacheError(
                f"`{name}` of {self.path} contains {dtype} of shape {shape}, expected integers"
                " (rows,)",
                remedy=ONE_PER_ROW,
            )
        kind = np.dtype(dtype).newbyteorder("<")
        return np.fromfile(self.path, dtype=kind, count=shape[0], offset=begin).astype(dtype)

    def class_names(self) -> tuple[str, ...] | None:
        """Return the JSON list `class_names` in the metadata, if any."""
        text = self._header()[0].get("__metadata__", {}).get("class_names")
        return None if text is None else parse_class_names(text, self.path)

    def _tensor(self, name: str) -> tuple[tuple[int, ...], str, int]:
        """Return shape and type of a tensor, and the byte of the file at which it begins."""
        content, start = self._header()
        told = content[name]
        dtype = _TYPES.get(told["dtype"], told["dtype"])
        return tuple(told["shape"]), dtype, start + int(told["data_offsets"][0])

    def _header(self) -> tuple[dict[str, Any], int]:
        """Return the header, and the byte of the file at which the tensors begin."""
        with self.path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            return json.loads(file.read(length)), 8 + length


_WRITTEN_TYPES = {"float16": "F16", "float32": "F32", "int64": "I64"}
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

"""A safetensors file: tensors by name, read where they lie.

Source: "Format" in the README of huggingface/safetensors.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open

from clinit.errors import CacheError
from clinit.extract.arrays.array_file import (
    ONE_PER_ROW,
    Labels,
    StoredFeatures,
    Take,
    parse_class_names,
    widened,
)

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
        """Return the names of the tensors."""
        self._check()
        return tuple(sorted(set(self._header()[0]) - {"__metadata__"}))

    def features(self, name: str) -> StoredFeatures:
        """Return a tensor; its numbers stay on the disk until they are used."""
        told, begin = self._tensor(name)
        shape, dtype = tuple(told["shape"]), _TYPES.get(told["dtype"], told["dtype"])
        origin = f"`{name}` of {self.path}"
        return StoredFeatures(origin, shape, dtype, partial(self._open, shape, dtype, begin))

    @contextmanager
    def _open(self, shape: tuple[int, ...], dtype: str, begin: int, folder: Path) -> Iterator[Take]:
        # The upper half of a float32 is a bfloat16, which NumPy does not have.
        kind = "<u2" if dtype == "bfloat16" else np.dtype(dtype).newbyteorder("<")
        stored = np.memmap(self.path, dtype=kind, mode="r", offset=begin, shape=shape)

        def take(rows: np.ndarray) -> np.ndarray:
            if dtype != "bfloat16":
                return widened(stored[rows])
            picked: np.ndarray = (stored[rows].astype(np.uint32) << 16).view(np.float32)
            return picked

        yield take

    def labels(self, name: str) -> Labels:
        """Return a tensor."""
        told, begin = self._tensor(name)
        dtype = _TYPES.get(told["dtype"], "")
        if not dtype.lstrip("u").startswith("int") or len(told["shape"]) != 1:
            raise CacheError(
                f"`{name}` of {self.path} holds {told['dtype']} of shape {tuple(told['shape'])},"
                " expected integers (rows,)",
                remedy=ONE_PER_ROW,
            )
        kind = np.dtype(dtype).newbyteorder("<")
        array = np.fromfile(self.path, dtype=kind, count=told["shape"][0], offset=begin)
        return array.astype(dtype)

    def class_names(self) -> tuple[str, ...] | None:
        """Return the JSON list `class_names` of the metadata."""
        text = self._header()[0].get("__metadata__", {}).get("class_names")
        return None if text is None else parse_class_names(text, self.path)

    def _tensor(self, name: str) -> tuple[dict[str, Any], int]:
        """Return what the header says of a tensor, and where in the file it begins."""
        content, start = self._header()
        told = content[name]
        return told, start + int(told["data_offsets"][0])

    def _header(self) -> tuple[dict[str, Any], int]:
        """Return the header, which the library has checked, and where the tensors begin."""
        with self.path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            return json.loads(file.read(length)), 8 + length

    def _check(self) -> None:
        """Let the library compare the header with the size of the file."""
        try:
            with safe_open(self.path, framework="numpy"):
                pass
        except (SafetensorError, OSError, ValueError, RecursionError) as error:
            raise CacheError(
                f"cannot read {self.path} as a safetensors file: {str(error)[:200]}",
                remedy="Write it with `safetensors.numpy.save_file` or `safetensors.torch"
                ".save_file`.",
            ) from error

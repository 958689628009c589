"""A safetensors file: the tensors `features`, `labels` and `rows`, class names in the metadata.

The header is written first and the bytes of the features follow as they are read: the library
itself would want all of them in memory.

Source: "Format" in the README of huggingface/safetensors.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from clinit.extract.exports.rows import ExportedRows
from clinit.files.commit import commit_file
from clinit.files.lock import claim_file

_TYPES = {"float16": "F16", "float32": "F32", "int64": "I64"}
_ALIGNMENT = 8


def write_safetensors(exported: ExportedRows, path: Path) -> None:
    """Write rows into a safetensors file, atomically.

    Raises:
        CacheError: If a shard cannot be read.
        ClinitError: If the file cannot be written.
    """

    def write(draft: Path) -> None:
        with draft.open("wb") as file:
            file.write(_header(exported))
            file.write(exported.labels.astype("<i8").data)
            file.write(exported.rows.astype("<i8").data)
            for _, features in exported.blocks():
                file.write(np.ascontiguousarray(features).data)

    with claim_file(path):
        commit_file(path, write)


def _header(exported: ExportedRows) -> bytes:
    """Return the length of the header, and the header, padded so that all tensors are aligned."""
    rows, begin = exported.num_rows, 0
    content: dict[str, Any] = {"__metadata__": exported.metadata}
    for name, shape, dtype in (
        ("labels", [rows], np.dtype(np.int64)),
        ("rows", [rows], np.dtype(np.int64)),
        ("features", [rows, exported.split.dim], exported.dtype),
    ):
        end = begin + int(np.prod(shape)) * dtype.itemsize
        content[name] = {"dtype": _TYPES[dtype.name], "shape": shape, "data_offsets": [begin, end]}
        begin = end
    text = json.dumps(content, ensure_ascii=False).encode()
    text += b" " * (-len(text) % _ALIGNMENT)
    return len(text).to_bytes(8, "little") + text

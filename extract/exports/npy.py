"""A folder of `.npy` files.

features.npy  (rows, dim) float16 or float32
labels.npy    (rows,) int64
rows.npy      (rows,) int64: rows of the cache and of its manifest
classes.txt   one class name per line, in label order
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from clinit.errors import CacheError
from clinit.extract.exports.rows import ExportedRows
from clinit.files.commit import commit_file
from clinit.files.lock import claim_folder
from clinit.files.text import lines_of

FEATURES, LABELS, ROWS, CLASSES = "features.npy", "labels.npy", "rows.npy", "classes.txt"


def write_npy(exported: ExportedRows, folder: Path) -> None:
    """Write rows into a folder; `features.npy` comes last, so where it is, all is.

    Raises:
        CacheError: If a class name cannot be a line of text, or a shard cannot be read.
        ClinitError: If the folder cannot be written.
    """
    names = exported.split.class_names
    _check_lines(names)
    text = "".join(f"{name}\n" for name in names).encode()
    with claim_folder(folder, leaves_lock=False):
        (folder / FEATURES).unlink(missing_ok=True)  # of an earlier export
        commit_file(folder / CLASSES, lambda draft: draft.write_bytes(text))
        _commit(folder / LABELS, exported.labels)
        _commit(folder / ROWS, exported.rows)
        commit_file(folder / FEATURES, lambda draft: _write_features(exported, draft))


def _write_features(exported: ExportedRows, draft: Path) -> None:
    # Not through a memory map: a full disk would end the process without a word.
    shape = (exported.num_rows, exported.split.dim)
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
                f"the class name {name!r} cannot be a line of {CLASSES}",
                remedy="Export with `--format safetensors` or `--format parquet`: their names are"
                " not lines.",
            )

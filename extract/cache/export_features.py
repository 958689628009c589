"""Export the features of a cache to files for other programs: NumPy or safetensors.

`import_features` reads an exported file back, bit for bit. One shard is read at a time, so a cache
may be larger than the memory. The files contain these arrays, of the rows with features:

    labels     (rows,) int64
    rows       (rows,) int64, row numbers in the cache and its manifest
    features   (rows, dim) float16 or float32

A folder also contains `classes.txt`, with one class name per line in label order; a safetensors
file contains the class names in its metadata.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Literal, NamedTuple

import numpy as np

from clinit.errors import CacheError
from clinit.extract.cache.read import CacheSplit
from clinit.files.commit import commit_file
from clinit.files.lock import claim_file, claim_folder
from clinit.files.paths import is_file
from clinit.files.text import lines_of
from clinit.words import number_of

Format = Literal["npy", "safetensors"]
"""`npy` writes a folder, `safetensors` a file."""
_OTHER_FILES = (
    *(".npy", ".npz", ".parquet", ".pt", ".pth", ".csv", ".tsv", ".json", ".h5", ".hdf5"),
    ".arrow",
)
"""Suffixes of file formats. An output folder must not have one, because the user probably expects
a file."""


@dataclass(frozen=True, slots=True, eq=False)
class Exported:
    """Result of exporting a split."""

    path: Path
    """The file, or the folder of `.npy` files."""
    split: CacheSplit
    num_rows: int
    num_left_out: int
    """Number of rows without features, which are not exported."""


def export_features(
    splits: Sequence[CacheSplit],
    out: Path,
    format: Format | None = None,
    *,
    on_rows: Callable[[str, int, int], None] = lambda title, done, total: None,
) -> Iterator[Exported]:
    """Write splits of a cache in another format; yield one result per split.

    Args:
        splits: At least one split.
        out: A `.safetensors` file for one split, or a folder that gets one file or folder per
            split. Existing files are replaced.
        format: The format; None takes the suffix of `out`, or `npy` without a suffix.
        on_rows: Called with a split's title, the number of rows read so far and in total.

    Raises:
        CacheError: If `out` does not fit the format or the number of splits, a split has no
            features, a class name cannot be a line of text, or a shard cannot be read.
        ClinitError: If `out` cannot be written.
    """
    as_file = out.suffix.lower() == ".safetensors"
    format = format or ("safetensors" if as_file else "npy")
    _check_place(out, format, as_file=as_file, num_splits=len(splits))
    suffix = "" if format == "npy" else f".{format}"
    targets = [out if as_file else out / f"{split.plan.split}{suffix}" for split in splits]
    for split, target in zip(splits, targets, strict=True):
        # Links are resolved, so that an export never replaces its own source.
        cache = split.path.parent
        if Path(os.path.realpath(target)).is_relative_to(os.path.realpath(cache)):
            raise CacheError(
                f"{target} is inside the exported cache {cache}", remedy="Give another folder."
            )
    for split, target in zip(splits, targets, strict=True):
        if not split.num_valid:
            raise CacheError(
                f"none of the {number_of(split.num_rows, 'row')} of {split.path} has features",
                remedy="Run its `clinit extract` command with --retry-invalid.",
            )
        (_write_npy if format == "npy" else _write_safetensors)(target, split, on_rows)
        yield Exported(target, split, split.num_valid, split.num_rows - split.num_valid)


def _check_place(out: Path, format: Format, *, as_file: bool, num_splits: int) -> None:
    suffix, why = out.suffix.lower(), ""
    if as_file and format == "npy":
        why = f"is named like a {suffix} file, but the format is {format}"
    elif as_file and num_splits > 1:
        why = f"is one file, but the cache has {number_of(num_splits, 'split')}"
    elif not as_file and (suffix in _OTHER_FILES or is_file(out)):
        why = f"is a file or named like a {suffix} file, expected a folder"
    if why:
        raise CacheError(
            f"{out} {why}",
            remedy="Give a folder, which gets a file or a folder per split; or give a .safetensors"
            " file with `--split` and without `--format`.",
        )


class _Array(NamedTuple):
    """An array to write; its features are read while they are written."""

    name: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    """Little-endian."""
    blocks: Iterable[np.ndarray]

    def write(self, file: IO[bytes]) -> None:
        for block in self.blocks:
            file.write(np.ascontiguousarray(block, dtype=self.dtype).data)


_OnRows = Callable[[str, int, int], None]


def _arrays(split: CacheSplit, on_rows: _OnRows) -> Iterator[_Array]:
    rows = np.flatnonzero(split.valid)

    def blocks() -> Iterator[np.ndarray]:
        for index, shard in enumerate(split.shards()):
            yield shard.features[shard.valid]
            on_rows(split.plan.title, split.plan.rows(index).stop, split.num_rows)

    for name, numbers in (("labels", split.labels[rows]), ("rows", rows)):
        yield _Array(name, rows.shape, np.dtype("<i8"), [numbers])
    dtype = np.dtype(split.dtype).newbyteorder("<")  # float32 if any shard is
    yield _Array("features", (len(rows), split.dim), dtype, blocks())


def _write_npy(folder: Path, split: CacheSplit, on_rows: _OnRows) -> None:
    """Write rows into a folder; `features.npy` is last, so if it exists, all files exist."""
    for name in split.class_names:
        if [name] != lines_of(name):
            raise CacheError(
                f"the class name {name!r} cannot be a line of classes.txt",
                remedy="Export with `--format safetensors`, which can store any name.",
            )
    text = "".join(f"{name}\n" for name in split.class_names).encode()
    with claim_folder(folder, leaves_lock=False):
        (folder / "features.npy").unlink(missing_ok=True)  # left by an earlier export
        commit_file(folder / "classes.txt", lambda draft: draft.write_bytes(text))
        for array in _arrays(split, on_rows):

            def write(draft: Path, array: _Array = array) -> None:
                # On a full disk, a memory map would kill the process silently.
                with draft.open("wb") as file:
                    header = {"descr": array.dtype.str, "fortran_order": False}
                    np.lib.format.write_array_header_1_0(file, header | {"shape": array.shape})
                    array.write(file)

            commit_file(folder / f"{array.name}.npy", write)


_TYPES = {"float16": "F16", "float32": "F32", "int64": "I64"}
_ALIGNMENT = 8


def _write_safetensors(path: Path, split: CacheSplit, on_rows: _OnRows) -> None:
    """Write rows into a file, atomically; the library would need all features in memory."""
    arrays, place = list(_arrays(split, on_rows)), 0
    header: dict[str, Any] = {
        "__metadata__": {
            "class_names": json.dumps(split.class_names, ensure_ascii=False),
            "dataset": split.plan.dataset,
            "split": split.plan.split,
            "backbone": split.fingerprint.backbone or "",
        }
    }
    for name, shape, dtype, _ in arrays:
        begin, place = place, place + int(np.prod(shape)) * dtype.itemsize
        told = {"dtype": _TYPES[dtype.name], "shape": shape, "data_offsets": [begin, place]}
        header[name] = told
    text = json.dumps(header, ensure_ascii=False).encode()
    text += b" " * (-len(text) % _ALIGNMENT)

    def write(draft: Path) -> None:
        with draft.open("wb") as file:
            file.write(len(text).to_bytes(8, "little") + text)
            for array in arrays:
                array.write(file)

    with claim_file(path):
        commit_file(path, write)

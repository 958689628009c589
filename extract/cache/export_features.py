"""Export the features of a cache to safetensors files for other programs.

A file contains these tensors, of the rows with features, and the class names in its metadata:

    labels     (rows,) int64
    rows       (rows,) int64, row numbers in the cache and its manifest
    features   (rows, dim) float16 or float32

`import_features` reads it back, bit for bit. It is written here, because the library would need all
features in memory; here one shard is read at a time.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from clinit.errors import CacheError
from clinit.extract.cache.read import CacheSplit
from clinit.files.commit import commit_file
from clinit.files.lock import claim_file
from clinit.files.paths import is_file
from clinit.words import number_of

_SUFFIX = ".safetensors"
_OTHER_FILES = (".npy", ".npz", ".parquet", ".csv", ".tsv", ".json", ".h5", ".pt", ".pth")
"""Suffixes that an output folder must not have, because the user probably expects a file."""
_TYPES = {"float16": "F16", "float32": "F32", "int64": "I64"}
_ALIGNMENT = 8


@dataclass(frozen=True, slots=True, eq=False)
class Exported:
    """Result of exporting a split."""

    path: Path
    split: CacheSplit
    num_rows: int
    num_left_out: int
    """Number of rows without features, which are not exported."""


def export_features(
    splits: Sequence[CacheSplit],
    out: Path,
    *,
    on_rows: Callable[[str, int, int], None] = lambda title, done, total: None,
) -> Iterator[Exported]:
    """Write splits of a cache into safetensors files; yield one result per split.

    Args:
        splits: At least one split.
        out: A `.safetensors` file for one split, or a folder that gets one file per split. Existing
            files are replaced.
        on_rows: Called with a split's title, the number of rows read so far and in total.

    Raises:
        CacheError: If `out` has another suffix or does not fit the number of splits, a split has no
            features, or a shard cannot be read.
        ClinitError: If `out` cannot be written.
    """
    suffix, why = out.suffix.lower(), ""
    as_file = suffix == _SUFFIX
    targets = [out if as_file else out / f"{split.plan.split}{_SUFFIX}" for split in splits]
    # Links are resolved, so that an export never replaces its own source.
    cache = os.path.realpath(splits[0].path.parent)
    if as_file and len(splits) > 1:
        why = f"is one file, but the cache has {number_of(len(splits), 'split')}"
    elif not as_file and (suffix in _OTHER_FILES or is_file(out)):
        why = f"is a file or named like a {suffix} file, expected a folder"
    elif any(Path(os.path.realpath(target)).is_relative_to(cache) for target in targets):
        why = f"is inside the exported cache {cache}"
    if why:
        raise CacheError(
            f"{out} {why}",
            remedy="Give a folder outside of the cache, which gets a file per split; or give a"
            " .safetensors file with `--split`.",
        )
    for split, target in zip(splits, targets, strict=True):
        if not split.num_valid:
            raise CacheError(
                f"none of the {number_of(split.num_rows, 'row')} of {split.path} has features",
                remedy="Run its `clinit extract` command with --retry-invalid.",
            )
        _write(target, split, on_rows)
        yield Exported(target, split, split.num_valid, split.num_rows - split.num_valid)


def _write(path: Path, split: CacheSplit, on_rows: Callable[[str, int, int], None]) -> None:
    def shards() -> Iterator[np.ndarray]:
        for index, shard in enumerate(split.shards()):
            yield shard.features[shard.valid]
            on_rows(split.plan.title, split.plan.rows(index).stop, split.num_rows)

    rows, whole = np.flatnonzero(split.valid), np.dtype("<i8")
    dtype = np.dtype(split.dtype).newbyteorder("<")  # float32 if any shard is
    arrays: dict[str, tuple[tuple[int, ...], np.dtype[Any], Iterable[np.ndarray]]] = {
        "labels": (rows.shape, whole, [split.labels[rows]]),
        "rows": (rows.shape, whole, [rows]),
        "features": ((len(rows), split.dim), dtype, shards()),
    }
    told = {
        "class_names": json.dumps(split.class_names, ensure_ascii=False),
        "dataset": split.plan.dataset,
        "split": split.plan.split,
        "backbone": split.fingerprint.backbone or "",
    }
    header, place = dict[str, Any](__metadata__=told), 0
    for name, (shape, kind, _) in arrays.items():
        begin, place = place, place + int(np.prod(shape)) * kind.itemsize
        kept = {"dtype": _TYPES[kind.name], "shape": shape, "data_offsets": [begin, place]}
        header[name] = kept
    text = json.dumps(header, ensure_ascii=False).encode()
    text += b" " * (-len(text) % _ALIGNMENT)

    def write(draft: Path) -> None:
        with draft.open("wb") as file:
            file.write(len(text).to_bytes(8, "little") + text)
            for _, kind, blocks in arrays.values():
                for block in blocks:
                    file.write(np.ascontiguousarray(block, dtype=kind).data)

    with claim_file(path):
        commit_file(path, write)

"""Export the features of a cache to files for other programs: NumPy or safetensors.

`import_features` reads an exported file back, bit for bit. One shard is read at a time, so a cache
may be larger than the memory.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
from jaxtyping import Float

from clinit.errors import CacheError
from clinit.extract.arrays.array_file import ExportedRows
from clinit.extract.arrays.numpy_files import write_npy
from clinit.extract.arrays.safetensors_files import write_safetensors
from clinit.extract.cache.read import CacheSplit
from clinit.files.paths import is_file
from clinit.words import number_of

WRITERS: dict[str, Callable[[ExportedRows, Path], None]] = {
    "npy": write_npy,
    "safetensors": write_safetensors,
}
"""Formats: `npy` writes a folder, `safetensors` a file."""

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
    format: str | None = None,
    *,
    on_rows: Callable[[str, int, int], None] = lambda title, done, total: None,
) -> Iterator[Exported]:
    """Write splits of a cache in another format; yield one result per split.

    Args:
        splits: At least one split.
        out: A `.safetensors` file for one split, or a folder that gets one file or folder per
            split. Existing files are replaced.
        format: One of `WRITERS`; None takes the suffix of `out`, or `npy` without a suffix.
        on_rows: Called with a split's title, the number of rows read so far and in total.

    Raises:
        CacheError: If `out` does not fit the format or the number of splits, a split has no
            features, or a shard cannot be read.
        ClinitError: If `out` cannot be written.
    """
    suffix = out.suffix.lower().removeprefix(".")
    as_file = suffix in WRITERS and suffix != "npy"
    format = format or (suffix if as_file else "npy")
    _check_place(out, format, as_file=as_file, splits=splits)
    targets = [_target(out, split, format, as_file=as_file) for split in splits]
    for split, target in zip(splits, targets, strict=True):
        # Links are resolved, so that an export never replaces its own source.
        cache = split.path.parent
        if Path(os.path.realpath(target)).is_relative_to(os.path.realpath(cache)):
            raise CacheError(
                f"{target} is inside the exported cache {cache}", remedy="Give another folder."
            )
    for split, target in zip(splits, targets, strict=True):
        exported = _rows_of(split, partial(on_rows, split.plan.title))
        rows = len(exported.rows)
        if not rows:
            raise CacheError(
                f"none of the {number_of(split.num_rows, 'row')} of {split.path} has features",
                remedy="Run its `clinit extract` command with --retry-invalid.",
            )
        WRITERS[format](exported, target)
        yield Exported(target, split, rows, split.num_rows - rows)


def _rows_of(split: CacheSplit, on_rows: Callable[[int, int], None]) -> ExportedRows:
    plan, rows = split.plan, np.flatnonzero(split.valid)
    dtype = np.dtype(split.dtype).newbyteorder("<")  # float32 if any shard is
    return ExportedRows(
        rows=rows,
        labels=split.labels[rows],
        class_names=split.class_names,
        dim=split.dim,
        dtype=dtype,
        metadata={
            "class_names": json.dumps(split.class_names, ensure_ascii=False),
            "dataset": plan.dataset,
            "split": plan.split,
            "backbone": plan.fingerprint.backbone or "",
        },
        blocks=partial(_blocks, split, dtype, on_rows),
    )


def _blocks(
    split: CacheSplit, dtype: np.dtype, on_rows: Callable[[int, int], None]
) -> Iterator[Float[np.ndarray, "block dim"]]:
    for index, shard in enumerate(split.shards()):
        yield shard.features[shard.valid].astype(dtype, copy=False)
        on_rows(split.plan.rows(index).stop, split.num_rows)


def _target(out: Path, split: CacheSplit, format: str, *, as_file: bool) -> Path:
    name = split.plan.split if format == "npy" else f"{split.plan.split}.{format}"
    return out if as_file else out / name


def _check_place(out: Path, format: str, *, as_file: bool, splits: Sequence[CacheSplit]) -> None:
    if format not in WRITERS:
        raise ValueError(f"format must be one of {', '.join(WRITERS)}, got {format!r}")
    suffix, why = out.suffix.lower(), ""
    if as_file and format != suffix.removeprefix("."):
        why = f"is named like a {suffix} file, but the format is {format}"
    elif as_file and len(splits) > 1:
        why = f"is one file, but the cache has {number_of(len(splits), 'split')}"
    elif not as_file and (suffix in _OTHER_FILES or is_file(out)):
        why = f"is a file or named like a {suffix} file, expected a folder"
    if why:
        raise CacheError(
            f"{out} {why}",
            remedy="Give a folder, which gets a file or a folder per split; or give a .safetensors"
            " file with `--split` and without `--format`.",
        )

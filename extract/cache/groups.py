"""Groups: images that repeat each other, such as frames of a video or images of a patient.

`groups.parquet`, next to the manifest of the training images, contains the number of the group of
each row, and the digest of the manifest that its rows follow. Features do not depend on this file.
"""

from __future__ import annotations

import io
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import polars as pl
from jaxtyping import Int

from clinit.errors import CacheError
from clinit.extract.dataset.manifest import Manifest
from clinit.extract.dataset.scan import Scan
from clinit.files.arrays import read_table, reading, scan_parquet
from clinit.files.commit import commit_file
from clinit.files.paths import is_file

GROUPS_FILE = "groups.parquet"
_FORMAT = "clinit-groups/1"


def write_groups(folder: Path, manifest: Manifest, source: Path, column: str) -> tuple[int, int]:
    """Write the groups of the images of a split.

    Args:
        folder: The folder of the split.
        manifest: The manifest of the split.
        source: A CSV or Parquet file with this column and a column `path` of manifest paths. For
            imported features, `path` may be absent if the rows are in the imported order.
        column: Images of a class with equal values in this column are a group. Images without a
            value are in no group.

    Returns:
        As `record_groups`.

    Raises:
        CacheError: If the file lacks the column or an image.
        StorageError: If the file cannot be read.
    """
    # The paths of imported rows are their numbers, padded with zeros to equal length.
    digits = max(map(len, manifest.table["path"]), default=0)
    return record_table(folder, manifest, _read(source, column, digits), column, f"{source}")


def record_table(
    folder: Path, manifest: Manifest, table: pl.DataFrame, column: str, source: str
) -> tuple[int, int]:
    """Write the groups in the columns `path` and `column` of a table, as `write_groups` does."""
    paths = manifest.table.select("path")
    found = paths.join(table, on="path", how="left", maintain_order="left")
    absent = paths.join(table, on="path", how="anti")["path"]
    if len(absent):
        raise CacheError(
            f"{len(absent):,} of {len(paths):,} images of {folder} are not in {source} (for example"
            f" {absent[0]!r}; the file has {table['path'][0] if len(table) else 'no row'})",
            remedy="Give a file whose column `path` contains the paths that `clinit manifest show"
            f" {folder / 'manifest.parquet'}` prints.",
        )
    values = found[column]
    numbers = values.rank("dense").cast(pl.Int64).to_numpy(allow_copy=True)
    numbers = np.where(values.is_null(), -1 - np.arange(len(values)), numbers).astype(np.int64)
    return record_groups(folder, manifest, numbers, column)


def record_groups(
    folder: Path, manifest: Manifest, numbers: Int[np.ndarray, " rows"], column: str
) -> tuple[int, int]:
    """Write the group number of each image of a split, and the name of the numbers.

    Returns:
        Number of images that repeat an earlier image, and of groups with more than one image.
    """
    content = io.BytesIO()
    metadata = {"format": _FORMAT, "manifest": manifest.digest, "column": column}
    pl.DataFrame({"group": numbers}).write_parquet(content, metadata=metadata)
    commit_file(folder / GROUPS_FILE, lambda draft: draft.write_bytes(content.getbuffer()))
    pairs = np.stack([manifest.table["label"].to_numpy(), numbers], axis=1)
    sizes = np.unique(pairs, axis=0, return_counts=True)[1]
    return int((sizes - 1).sum()), int((sizes > 1).sum())


def record_scanned(folder: Path, scans: Iterable[Scan], labels: str | None) -> None:
    """Write the groups of the training images of a cache, if a table of labels contains groups."""
    for each in scans:
        if each.groups is not None and each.manifest.split == "train":
            record_table(folder / "train", each.manifest, each.groups, "group", f"{labels}")


def _read(source: Path, column: str, digits: int) -> pl.DataFrame:
    remedy = "Give a CSV or Parquet file, and a column with equal values for each group."
    with reading(source, "a table of images", CacheError, remedy):
        table = read_table(source)
        names = table.columns
        if column not in names:
            raise ValueError(f"it has no column {column!r}; its columns are {', '.join(names)}")
        if "path" not in names:
            number = pl.int_range(pl.len()).cast(pl.String)
            table = table.with_columns(path=number.str.zfill(digits))
        return table.select("path", column).unique("path", keep="first", maintain_order=True)


def read_groups(folder: Path, manifest: Manifest) -> Int[np.ndarray, " rows"] | None:
    """Return the group number of each image of a split; None if no groups were recorded.

    Raises:
        CacheError: If the file is damaged, or belongs to other images.
    """
    path = folder / GROUPS_FILE
    if not is_file(path):
        return None
    remedy = "Record the groups again with `clinit cache group`, or remove the file."
    with reading(path, "groups", CacheError, remedy):
        metadata = pl.read_parquet_metadata(path)
        told = metadata.get("format"), metadata.get("manifest")
        if told != (_FORMAT, manifest.digest):
            raise ValueError("it belongs to other images")
        numbers = scan_parquet(path).collect()["group"].cast(pl.Int64)
        if len(numbers) != len(manifest.table) or numbers.null_count():
            raise ValueError(f"it has {len(numbers):,} of {len(manifest.table):,} rows")
    return numbers.to_numpy().astype(np.int64)

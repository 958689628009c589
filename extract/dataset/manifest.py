"""The manifest: the images of a split, in order.

A manifest file is a Parquet file with the columns `path` (relative to the root of the data set, `/`
between folders), `label`, `class_name` and `size_bytes`, sorted by (label, path) in code point
order. The key-value metadata contain `format`, `dataset`, `split`, `class_names` (JSON), `digest`,
and the `sha256` of these five. Row i of a feature cache is row i of its manifest.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any

import msgspec
import polars as pl

from clinit.errors import ManifestError
from clinit.extract.dataset.known import SPLITS
from clinit.files.arrays import reading, row_count
from clinit.files.commit import commit_file
from clinit.files.documents import content_sha256
from clinit.files.paths import is_file
from clinit.files.text import MAX_NAME
from clinit.words import contrast_digests

MANIFEST_FILE = "manifest.parquet"
"""Name of the manifest of a split in a cache."""
SCHEMA = pl.Schema(
    {"path": pl.String, "label": pl.Int64, "class_name": pl.String, "size_bytes": pl.Int64}
)
_IN_CONTAINER: dict[str, Any] = {"container": pl.String, "column": pl.String, "position": pl.Int64}
CONTAINED_SCHEMA = pl.Schema({**SCHEMA, **_IN_CONTAINER, "container_bytes": pl.Int64})
"""Columns for images in containers. `path` is the path of the container, a `/`, and the name of the
image in it; `column` is the column of images in a Parquet file, and empty for a tar file;
`position` is the first byte of the image in a tar file, or its row in a Parquet file;
`container_bytes` is the size of the container."""
# Matches absolute paths (of Windows too), `..`, and zero bytes, which make the digest ambiguous.
LEAVES_ROOT = pl.col("path").str.contains(r"^$|^[/\\]|^[A-Za-z]:[/\\]|(^|[/\\])\.\.([/\\]|$)|\x00")
CONTAINER = ("container", "column", "container_bytes")
"""Columns with the same value in all rows of a container."""


BUILD_AGAIN = (
    "Put the old file back; or build the manifest again with `clinit manifest build` and extract"
    " into a new folder."
)


@dataclass(frozen=True, slots=True)
class Container:
    """A file with many images."""

    path: Path
    root: Path
    """The folder that a link may not leave."""
    size_bytes: int
    """Size of the file when the manifest was built."""
    column: str
    """Column of the images in a Parquet file; empty for a tar file."""

    def check_place(self) -> None:
        """Check that the file is under its root.

        Raises:
            ManifestError: If a link leads out of the root.
        """
        if not Path(os.path.realpath(self.path)).is_relative_to(os.path.realpath(self.root)):
            raise ManifestError(
                f"{self.path} is a link that leaves {self.root}",
                remedy="Give a folder that contains both the link and its target.",
            )

    def check_size(self, found: int) -> None:
        """Check that the size of the file is still the size in the manifest.

        Raises:
            ManifestError: If the size has changed.
        """
        if found != self.size_bytes:
            raise ManifestError(
                f"{self.path} has {found:,} bytes, not {self.size_bytes:,} as in the manifest:"
                " it was changed",
                remedy=BUILD_AGAIN,
            )


LABEL_SCHEMA = pl.Schema({"index": pl.Int64, "name": pl.String})
"""Number and name of the class of an image; null if unknown."""
CONTENT_SCHEMA = pl.Schema(
    [("member", pl.String), ("position", pl.Int64), ("size_bytes", pl.Int64), *LABEL_SCHEMA.items()]
)
"""Columns of `Contents.table`. `position` is the first byte of the image in a tar file, or its row
in a Parquet file; an unknown `size_bytes` is 0."""


@dataclass(frozen=True, slots=True, eq=False)
class Contents:
    """The images in a container."""

    table: pl.DataFrame
    """Columns of `CONTENT_SCHEMA`, in the order of the file."""
    column: str = ""
    """Column of the images in a Parquet file; empty for a tar file."""
    class_names: tuple[str, ...] | None = None
    """Class names in label order, if the file contains them."""
    left_out: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """Text of a warning -> names of members; an empty name means the container."""


def is_contained(table: pl.DataFrame) -> bool:
    """Return whether a table lists images in containers."""
    return "container" in table.columns


def _wrong_columns(table: pl.DataFrame, *, contained: bool) -> str | None:
    """Return a message if a table lacks the columns of images (in containers), else None."""
    expected = CONTAINED_SCHEMA if contained else SCHEMA
    if table.schema == expected:
        return None
    return f"the columns are {dict(table.schema)}, expected {dict(expected)}"


def table_problem(table: pl.DataFrame, class_names: tuple[str, ...]) -> str | None:
    """Return the fault in a table of images, or None."""
    contained = is_contained(table)
    if problem := _wrong_columns(table, contained=contained):
        return problem
    if len(set(class_names)) != len(class_names):
        return "two classes have the same name"
    if sum(table.null_count().row(0)):
        return "the table has missing values"
    path, label, container = pl.col("path"), pl.col("label"), pl.col("container")
    names = pl.lit(pl.Series(class_names, dtype=pl.String))
    checks = {
        f"labels must lie in [0, {len(class_names)})": ~label.is_between(0, len(class_names) - 1),
        "leaves the root": LEAVES_ROOT,
        "class_name and label disagree": pl.col("class_name") != names.gather(label),
    }
    order = ("container", "position") if contained else ("label", "path")
    major, minor = map(pl.col, order)
    not_after = (major < major.shift()) | ((major == major.shift()) & (minor <= minor.shift()))
    if contained:
        inside = path.str.starts_with(pl.concat_str(container, pl.lit("/"))) & (container != "")
        checks["is not in its container"] = ~inside
    checks |= {
        f"the rows are not sorted by ({', '.join(order)})": not_after,
        "a path occurs twice": path.is_duplicated(),
    }
    for problem, wrong in checks.items():
        found = table.filter(wrong)
        if len(found):
            return f"the path {found['path'][0]!r}: {problem}"
    return None


FORMAT = "clinit-manifest/2"
CONTAINED_FORMAT = "clinit-manifest/3"
"""Format of manifests of images in containers."""
OLDER = "clinit-manifest/1"
"""Format of manifests of earlier versions, without `sha256`."""
_SEAL = "sha256"
_SEALED = ("format", "dataset", "split", "class_names", "digest")
_ClassNames = tuple[Annotated[str, msgspec.Meta(max_length=MAX_NAME)], ...]
_BUILD_AGAIN = "Build the manifest again with `clinit manifest build`."


@dataclass(frozen=True, slots=True, eq=False)
class Manifest:
    """The images of one split of a data set.

    Raises:
        ValueError: If the split is unknown, or `table_problem` finds a fault.
    """

    dataset: str
    split: str
    """train or val."""
    class_names: tuple[str, ...]
    """All classes of the data set in label order; a class may have no image in this split."""
    table: pl.DataFrame
    """Columns of `SCHEMA` or `CONTAINED_SCHEMA`; paths are unique and stay under their root."""

    def __post_init__(self) -> None:
        """Check the table."""
        if self.split not in SPLITS:
            raise ValueError(f"the split is {self.split!r}, expected {' or '.join(SPLITS)}")
        problem = table_problem(self.table, self.class_names)
        if problem is not None:
            raise ValueError(problem)

    def __repr__(self) -> str:
        rows, classes = f"{len(self.table):,} images", f"{len(self.class_names):,} classes"
        return f"<Manifest {self.dataset} {self.split}: {rows}, {classes}>"

    @property
    def digest(self) -> str:
        """SHA-256 (hex) of class names, paths, labels and sizes; computed at each call.

        For images in containers, the digest also covers the path, column, size and number of rows
        of each container, and the position of each image. The names of the data set and of the
        split are left out, because they do not change the rows.
        """
        parts = [
            json.dumps(self.class_names, ensure_ascii=False).encode(),
            "\0".join(self.table["path"].to_list()).encode(),
            self.table["label"].to_numpy().astype("<i8").tobytes(),
            self.table["size_bytes"].to_numpy().astype("<i8").tobytes(),
        ]
        if self.is_contained:
            parts.append(json.dumps(self.containers().rows(), ensure_ascii=False).encode())
            parts.append(self.table["position"].to_numpy().astype("<i8").tobytes())
        digest = hashlib.sha256()
        for part in parts:
            digest.update(len(part).to_bytes(8, "little"))
            digest.update(part)
        return digest.hexdigest()

    @property
    def is_contained(self) -> bool:
        """Whether the images are in containers."""
        return is_contained(self.table)

    def containers(self) -> pl.DataFrame:
        """Return container, column, container_bytes and number of rows (len) of each container."""
        return self.table.group_by(CONTAINER, maintain_order=True).len()

    def file_of(self, row: int) -> str:
        """Return the path of the file with an image: the image file, or the container."""
        path: str = self.table["container" if self.is_contained else "path"][row]
        return path

    @property
    def empty_classes(self) -> list[str]:
        """Names of the classes without an image in this split, in label order."""
        present = {*self.table["label"].unique()}
        return [name for label, name in enumerate(self.class_names) if label not in present]

    def without(self, paths: Collection[str]) -> Manifest:
        """Return a manifest without the images at some paths."""
        return replace(self, table=self.table.filter(~pl.col("path").is_in(list(paths))))

    def limit_per_class(self, n: int) -> Manifest:
        """Return a manifest of the first `n` images of each class, in manifest order."""
        return replace(self, table=self.table.filter(pl.int_range(pl.len()).over("label") < n))


def write_manifest(manifest: Manifest, path: Path) -> None:
    """Write `manifest` to `path` atomically; equal manifests give equal bytes."""
    metadata = {
        "format": CONTAINED_FORMAT if manifest.is_contained else FORMAT,
        "dataset": manifest.dataset,
        "split": manifest.split,
        "class_names": json.dumps(manifest.class_names, ensure_ascii=False),
        "digest": manifest.digest,
    }
    metadata[_SEAL] = content_sha256(metadata)
    # Polars writes into memory, because on a full disk it raises errors of other types.
    content = io.BytesIO()
    manifest.table.write_parquet(content, metadata=metadata)
    commit_file(path, lambda draft: draft.write_bytes(content.getbuffer()))


def read_manifest(path: Path) -> Manifest:
    """Read a manifest file.

    Raises:
        ManifestError: If the file is absent, is not a manifest, was changed after it was
            written, or contains a path that leaves the root.
        StorageError: If the file exists and cannot be read.
    """
    if not is_file(path):
        raise ManifestError(
            f"no manifest file at {path}",
            remedy="Write it with `clinit manifest build DATASET --root DIR --split train --out"
            f" {path}`.",
        )
    with reading(path, "a manifest", ManifestError, _BUILD_AGAIN):
        manifest, told = _parse(path.read_bytes())
    if manifest.digest != told:
        found, told = contrast_digests(manifest.digest, told)
        raise ManifestError(
            f"{path} was changed after it was written: its digest is {found}, but its metadata"
            f" contain {told}",
            remedy=_BUILD_AGAIN,
        )
    return manifest


def _parse(content: bytes) -> tuple[Manifest, str]:
    row_count(pl.scan_parquet(io.BytesIO(content)), len(content))
    metadata = pl.read_parquet_metadata(content)
    format = metadata.get("format", "not given")
    if format not in (FORMAT, CONTAINED_FORMAT, OLDER):
        raise ValueError(f"its format is {format!r}, expected {FORMAT!r}")
    if _SEAL in metadata or format != OLDER:
        sealed = content_sha256({name: metadata.get(name) for name in _SEALED})
        if metadata.get(_SEAL) != sealed:
            raise ValueError("its metadata were changed after it was written")
    columns = pl.DataFrame(schema=pl.read_parquet_schema(content))
    if problem := _wrong_columns(columns, contained=format == CONTAINED_FORMAT):
        raise ValueError(problem)
    names = msgspec.json.decode(metadata["class_names"], type=_ClassNames)
    table = pl.read_parquet(content)
    return Manifest(metadata["dataset"], metadata["split"], names, table), metadata["digest"]

"""`cache.json`: the contents of a complete split.

The file is written last, so its presence means that the split is complete. It contains a digest of
its content and the identifier of its plan. When a shard is read, its number type and its invalid
rows are compared with this file.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal

import msgspec
import numpy as np

from clinit.errors import CacheError
from clinit.extract.cache.head import Head, Top1, head_rows, tensors_sha256, top1
from clinit.extract.cache.plan import SUMMARY_FILE, WRITE_AGAIN, Plan, shard_name
from clinit.extract.cache.shard import file_sha256, read_shard
from clinit.extract.dataset.manifest import Manifest
from clinit.files.documents import DocumentKind, content_sha256

UNKNOWN = "unknown"
"""Value of `HeadFacts.class_names` if the head has no class names."""
_DOCUMENT = DocumentKind(
    title="the summary of a feature cache",
    format="clinit-cache/2",
    older=("clinit-cache/1",),
    error=CacheError,
    remedy=WRITE_AGAIN,
    max_bytes=2**29,  # every bad image of a large data set is listed
)

_Count = Annotated[int, msgspec.Meta(ge=0)]
_Amount = Annotated[float, msgspec.Meta(ge=0)]
_Type = Literal["float16", "float32"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardFacts:
    """Facts about a shard at the time of writing."""

    name: str
    rows: _Count
    sha256: str
    dtype: _Type
    min: float | None
    """Smallest value of the features of valid rows, `max` the largest; None without valid rows."""
    max: float | None
    non_finite: _Count
    """Rows that are invalid because their features are not finite."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InvalidRow:
    """A row without features."""

    row: _Count
    path: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadFacts:
    """Accuracy and class names of the stored head, on the features of the split."""

    class_names: str
    """Where the class names are from."""
    correct: _Count
    total: _Count
    """Valid rows whose class is among the head's classes."""
    tensors: str | None = None
    """SHA-256 of the head's tensors; None without a head, and in caches of earlier versions."""
    names: str | None = None
    """SHA-256 of the head's class names; None if the head has no class names, and in caches of
    earlier versions."""

    @property
    def top1(self) -> Top1:
        """Accuracy of the head."""
        return Top1(self.correct, self.total)


@dataclass(frozen=True, slots=True, kw_only=True)
class FileFacts:
    """A file that an import or an extraction has read."""

    path: str
    sha256: str
    name: str | None = None
    """Name of the array in the file; None if the file contains a single array or no array."""

    @classmethod
    def of(cls, path: Path, name: str = "") -> FileFacts:
        """Describe a file.

        Raises:
            StorageError: If the file cannot be read.
        """
        return cls(path=str(path.absolute()), sha256=file_sha256(path), name=name or None)


@dataclass(frozen=True, slots=True, eq=False)
class NamedHead:
    """A pretrained head, whose rows may have class names, or no head."""

    head: Head | None = None
    source: str = UNKNOWN
    """Source of the class names."""
    file: FileFacts | None = None
    """The file that lists the names, if they are from a file."""

    @property
    def digests(self) -> dict[str, str | None]:
        """The fields of `HeadFacts` that change if the head or the names of its rows do."""
        names = None if self.head is None else self.head.class_names
        return {
            "tensors": None if self.head is None else tensors_sha256(self.head),
            "names": None if names is None else content_sha256(names),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFacts:
    """How the features were computed or imported; imports have neither a device nor a speed."""

    root: str | None = None
    """The folder of the images, an absolute path except in caches of earlier versions; None for an
    import."""
    weights: str | msgspec.UnsetType | None = msgspec.UNSET
    """The file of the weights; None for timm's pretrained weights; unset if unknown."""
    started: str = ""
    device: str = ""
    workers: _Count | None = None
    max_pixels: _Count | None = None
    """Maximum number of pixels; larger images were invalid. None for an import, and in summaries of
    earlier versions."""
    computed_rows: _Count | None = None
    images_per_s: _Amount | None = None
    seconds: Mapping[str, _Amount] = field(default_factory=dict)
    shares: Mapping[str, _Amount] = field(default_factory=dict)
    """Share of each phase in the time, in [0, 1]."""
    bound: str = ""
    retreats: Mapping[str, _Count] = field(default_factory=dict)
    """Retreats from the GPU, with counts."""
    features: FileFacts | None = None
    """Imported file of features. This field, `labels` and `classes` are for imports."""
    labels: FileFacts | None = None
    classes: FileFacts | None = None
    """Imported file of class names; None if the user gave no such file."""
    head: FileFacts | None = None
    """File of the head, in imports of earlier versions."""
    head_classes: FileFacts | None = None
    """File that `--head-classes` gave to an extraction, if any."""
    versions: Mapping[str, str] = field(default_factory=dict)
    command: str | None = None
    """The command line that wrote the features; None for calls from Python, and in summaries of
    earlier versions."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """The content of `cache.json`."""

    plan: str
    num_rows: _Count
    num_valid: _Count
    """Number of rows with features."""
    dim: _Count
    dtype: _Type
    """float32 if any shard is, else float16."""
    shards: tuple[ShardFacts, ...]
    invalid: tuple[InvalidRow, ...]
    """Rows without features, in order."""
    head: HeadFacts
    run: RunFacts


def read_summary(folder: Path, plan: Plan) -> Summary:
    """Read the summary of a complete split.

    Raises:
        CacheError: If the summary is absent, damaged or belongs to another plan.
    """
    path = folder / SUMMARY_FILE
    summary = _DOCUMENT.read(path, Summary)
    if summary.plan != plan.identifier:
        raise CacheError(
            f"{path} and the plan of its split belong to different extractions",
            remedy="Run the `clinit extract` command of this cache into a new folder.",
        )
    return summary


def write_summary(
    folder: Path, plan: Plan, manifest: Manifest, named: NamedHead, run: RunFacts
) -> None:
    """Read and verify all shards once more, and write `cache.json`.

    Args:
        folder: The folder of the split.
        plan: The plan of the split.
        manifest: The manifest of the split.
        named: The head whose accuracy on the features is stored.
        run: How the features were computed or imported.

    Raises:
        CacheError: If a shard is missing or damaged.
        StorageError: If a shard cannot be read.
    """
    paths, names, accuracy = manifest.table["path"], manifest.class_names, Top1(0, 0)
    rows_of = None if named.head is None else head_rows(named.head, names)
    shards: list[ShardFacts] = []
    invalid: list[InvalidRow] = []
    for index in range(plan.num_shards):
        path, first = folder / shard_name(index), plan.rows(index).start
        shard = read_shard(path, plan, index)
        # As float32, because NumPy compares float16 fifty times as slowly.
        kept = shard.features[shard.valid].astype(np.float32, copy=False)
        if named.head is not None and rows_of is not None:
            accuracy += top1(named.head, kept, shard.labels[shard.valid], rows_of)
        invalid += [
            InvalidRow(row=first + row, path=paths[first + row], reason=reason)
            for row, reason in sorted(shard.reasons.items())
        ]
        shards.append(
            ShardFacts(
                name=path.name,
                rows=len(shard.labels),
                sha256=file_sha256(path),
                dtype="float32" if shard.features.dtype == "float32" else "float16",
                min=float(kept.min()) if len(kept) else None,
                max=float(kept.max()) if len(kept) else None,
                non_finite=sum("not finite" in reason for reason in shard.reasons.values()),
            )
        )
    correct, total = accuracy.correct, accuracy.total
    judged = HeadFacts(class_names=named.source, correct=correct, total=total, **named.digests)
    summary = Summary(
        plan=plan.identifier,
        num_rows=plan.num_rows,
        num_valid=plan.num_rows - len(invalid),
        dim=plan.dim,
        dtype=max(shard.dtype for shard in shards),
        shards=tuple(shards),
        invalid=tuple(invalid),
        head=judged,
        run=run,
    )
    _DOCUMENT.write(folder / SUMMARY_FILE, msgspec.to_builtins(summary))

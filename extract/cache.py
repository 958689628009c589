"""Read feature caches.

A cache is a folder with a sub-folder per split. A split holds `plan.json`, its manifest, immutable
shards and, once all of them are there, `cache.json`; a split without `cache.json` is refused.
Every shard is verified against its digest as it is read. `views/<k>` beside the splits is a split
folder too: the training images once more, randomly cropped.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Int

from clinit.errors import CacheError, ManifestError
from clinit.extract.dataset import SPLITS
from clinit.extract.features import FeatureSet
from clinit.extract.head import Head, read_head
from clinit.extract.manifest import Manifest, read_manifest
from clinit.extract.plan import Plan, backbone_identifier, read_plan, shard_name
from clinit.extract.shard import Shard, file_sha256, read_shard
from clinit.extract.views import VIEWS_FOLDER, check_view, view_folders

HEAD_FILE = "head.safetensors"
_SUMMARY_FIELDS = {"num_rows", "num_valid", "dim", "dtype", "shards", "invalid", "head", "run"}
_EXTRACT_AGAIN = "Run the `clinit extract` command of this cache again: it writes the file anew."


@dataclass(frozen=True, eq=False)
class CacheSplit:
    """One complete split of a feature cache. Row i is row i of the manifest."""

    path: Path
    plan: Plan
    summary: Mapping[str, Any]
    """The content of `cache.json`."""

    @property
    def num_rows(self) -> int:
        """Number of rows, invalid ones included."""
        return self.plan.num_rows

    @property
    def num_valid(self) -> int:
        """Number of rows that hold features."""
        return int(self.summary["num_valid"])

    @property
    def dim(self) -> int:
        """Width of a feature vector."""
        return self.plan.dim

    @property
    def dtype(self) -> str:
        """Type of the features: float32 as soon as one shard is."""
        return str(self.summary["dtype"])

    @property
    def fingerprint(self) -> Mapping[str, str]:
        """Everything that the features depend on, by field."""
        return self.plan.fingerprint

    @cached_property
    def manifest(self) -> Manifest:
        """The manifest that the rows follow.

        Raises:
            CacheError: If it is missing, damaged, or not the one that was extracted.
        """
        path = self.path / "manifest.parquet"
        try:
            manifest = read_manifest(path)
        except ManifestError as error:
            raise CacheError(str(error), remedy=_EXTRACT_AGAIN) from error
        if manifest.digest != self.plan.fingerprint["manifest"]:
            raise CacheError(
                f"{path} is not the manifest that was extracted into {self.path}",
                remedy=_EXTRACT_AGAIN,
            )
        return manifest

    @property
    def class_names(self) -> tuple[str, ...]:
        """One name a class; a class may have no row."""
        return self.manifest.class_names

    @cached_property
    def labels(self) -> Int[np.ndarray, " rows"]:
        """Label of every row, invalid ones included."""
        return self.manifest.table["label"].to_numpy().astype(np.int64)

    @cached_property
    def valid(self) -> Bool[np.ndarray, " rows"]:
        """Which rows hold features."""
        valid = np.ones(self.num_rows, dtype=bool)
        valid[[entry["row"] for entry in self.summary["invalid"]]] = False
        return valid

    def shards(self) -> Iterator[Shard]:
        """Yield the shards in order, verified.

        Raises:
            CacheError: If one is missing, damaged or of another plan.
        """
        for index in range(self.plan.num_shards):
            yield self.shard(index)

    def shard(self, index: int) -> Shard:
        """Read one shard, verified; see `shards`."""
        path, rows = self.path / shard_name(index), self.plan.rows(index)
        shard = read_shard(path, plan_identifier=self.plan.identifier)
        if not np.array_equal(shard.labels, self.labels[rows.start : rows.stop]):
            raise CacheError(
                f"the labels in {path} are not those of the manifest beside it",
                remedy="Run the `clinit extract` command of this cache into a new folder.",
            )
        return shard

    def blocks(
        self, max_rows: int = 65_536
    ) -> Iterator[tuple[Float[np.ndarray, "rows dim"], Int[np.ndarray, " rows"]]]:
        """Yield features and labels of the valid rows, in order, without holding all of them."""
        for shard in self.shards():
            features, labels = shard.features, shard.labels
            if not shard.valid.all():
                features, labels = features[shard.valid], labels[shard.valid]
            for start in range(0, len(labels), max_rows):
                yield features[start : start + max_rows], labels[start : start + max_rows]

    def load(self) -> FeatureSet:
        """Read the features and labels of all valid rows, in order, into memory."""
        features = np.empty((self.num_valid, self.dim), dtype=self.dtype)
        labels = np.empty(self.num_valid, dtype=np.int64)
        start = 0
        for block, block_labels in self.blocks():
            features[start : start + len(block)] = block
            labels[start : start + len(block)] = block_labels
            start += len(block)
        if start != self.num_valid:
            raise CacheError(
                f"{self.path} holds {start:,} valid rows, its cache.json says {self.num_valid:,}",
                remedy="Run the `clinit extract` command of this cache again.",
            )
        return FeatureSet(features, labels, self.class_names)


@dataclass(frozen=True, eq=False)
class Cache:
    """A feature cache: its complete splits and the pretrained head."""

    path: Path
    splits: Mapping[str, CacheSplit]
    head: Head | None

    def split(self, name: str) -> CacheSplit:
        """Return a split.

        Raises:
            CacheError: If the cache does not hold it.
        """
        if name not in self.splits:
            raise CacheError(
                f"{self.path} has no split {name!r}, only {', '.join(self.splits)}",
                remedy=f"Run its `clinit extract` command with `--split {name}`.",
            )
        return self.splits[name]

    @cached_property
    def views(self) -> tuple[CacheSplit, ...]:
        """Random views of the training images, row by row those of `train`; opened on demand.

        Raises:
            CacheError: If one is incomplete, or was not extracted like the train split.
        """
        folders = view_folders(self.path)
        if not folders:
            return ()
        plain = self.split("train").fingerprint
        views = tuple(map(open_split, folders))
        for view in views:
            check_view(view.path, view.fingerprint, plain, views[0].fingerprint)
        return views


def open_split(path: Path) -> CacheSplit:
    """Open one split of a cache.

    Raises:
        CacheError: If it is missing or its extraction has not been finished.
    """
    plan = read_plan(path)
    summary_path = path / "cache.json"
    if not summary_path.is_file():
        present = sum((path / shard_name(i)).is_file() for i in range(plan.num_shards))
        raise CacheError(
            f"{path} holds {present:,} of {plan.num_shards:,} shards:"
            " its extraction was interrupted",
            remedy="Run the same `clinit extract` command again; it resumes.",
        )
    try:
        summary = json.loads(summary_path.read_text(encoding="utf-8"))
        known = summary["plan"] == plan.identifier
        if missing := _SUMMARY_FIELDS - set(summary):
            raise ValueError(f"it lacks {', '.join(sorted(missing))}")
        if len(summary["shards"]) != plan.num_shards:
            raise ValueError(f"it lists {len(summary['shards'])} of {plan.num_shards} shards")
    except (ValueError, KeyError, TypeError) as error:
        raise CacheError(
            f"{summary_path} is damaged: {error}",
            remedy="Run the same `clinit extract` command again; it writes the file anew.",
        ) from error
    if not known:
        raise CacheError(
            f"{summary_path} and the plan beside it belong to different extractions",
            remedy="Run the `clinit extract` command of this cache into a new folder.",
        )
    return CacheSplit(path, plan, summary)


def open_cache(path: Path) -> Cache:
    """Open a cache with all of its splits.

    Raises:
        CacheError: If there is none at `path`, or a split is incomplete.
    """
    found = [name for name in SPLITS if (path / name / "plan.json").is_file()]
    if not found:
        parent = path.parents[1] if path.parent.name == VIEWS_FOLDER else path.parent
        hint = (
            f"Give its parent folder, {parent}."
            if (path / "plan.json").is_file()
            else "Write one with `clinit extract --out`, or import features with"
            " `clinit cache import`."
        )
        raise CacheError(f"no feature cache at {path}", remedy=hint)
    head_path = path / HEAD_FILE
    head = read_head(head_path) if head_path.is_file() else None
    splits = {name: open_split(path / name) for name in found}
    _check_one_backbone(path, splits, head)
    return Cache(path, splits, head)


def _check_one_backbone(path: Path, splits: Mapping[str, CacheSplit], head: Head | None) -> None:
    first, *others = splits.values()
    for other in others:
        for name in sorted({*first.fingerprint, *other.fingerprint} - {"manifest"}):
            texts = [split.fingerprint.get(name, "nothing") for split in (first, other)]
            if texts[0] != texts[1]:
                raise CacheError(
                    f"the splits of {path} hold features of different backbones: {name} ="
                    f" {texts[0]} in {first.path.name}, {texts[1]} in {other.path.name}",
                    remedy="Extract both splits into one folder by one `clinit extract` command.",
                )
    if head is not None and head.fingerprint not in ("", backbone_identifier(first.fingerprint)):
        raise CacheError(
            f"{path / HEAD_FILE} belongs to another backbone than the features beside it",
            remedy=_EXTRACT_AGAIN,
        )


def shard_problem(path: Path, plan: Plan) -> str | None:
    """Return what is wrong with the content of a shard, None where it is whole."""
    try:
        read_shard(path, plan_identifier=plan.identifier)
    except CacheError as error:
        return str(error)
    return None


def verify_shard(split: CacheSplit, shard: int) -> str | None:
    """Compare a shard with its digests, byte by byte; return what is wrong, or None."""
    path = split.path / shard_name(shard)
    try:
        split.shard(shard)
    except CacheError as error:
        return str(error)
    if file_sha256(path) != split.summary["shards"][shard]["sha256"]:
        return f"{path} has changed since it was written"
    return None

"""Read feature caches.

A cache is a folder with a sub-folder per split. A split holds `plan.json`, its manifest, immutable
shards and, once all of them are there, `cache.json`; a split without `cache.json` is refused.
Every shard is verified against its digest as it is read. `views/<k>` beside the splits is a split
folder too: the training images once more, randomly cropped.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
from jaxtyping import Bool, Int

from clinit.errors import CacheError, ManifestError
from clinit.extract.arrays.groups import read_groups
from clinit.extract.cache.features import FeatureSet
from clinit.extract.cache.fingerprint import Fingerprint
from clinit.extract.cache.folder import SUMMARY_FILE, check_view, split_names, view_folders
from clinit.extract.cache.head import Head, read_head, tensors_sha256
from clinit.extract.cache.plan import WRITE_AGAIN, Plan, read_plan, shard_name
from clinit.extract.cache.shard import Shard, file_sha256, file_size, read_shard
from clinit.extract.cache.summary import Summary, read_summary
from clinit.extract.dataset.manifest import Manifest, read_manifest

HEAD_FILE = "head.safetensors"
_SHARD_NAME = re.compile(r"shard-\d{5,}\.h5")


@dataclass(frozen=True, eq=False)
class CacheSplit:
    """One complete split of a feature cache. Row i is row i of the manifest."""

    path: Path
    plan: Plan
    summary: Summary
    """The content of `cache.json`."""

    def __repr__(self) -> str:
        return f"<CacheSplit {self.path}: {self.num_rows:,} rows of {self.dim} x {self.dtype}>"

    @property
    def num_rows(self) -> int:
        """Number of rows, invalid ones included."""
        return self.plan.num_rows

    @property
    def num_valid(self) -> int:
        """Number of rows that hold features."""
        return self.summary.num_valid

    @property
    def dim(self) -> int:
        """Width of a feature vector."""
        return self.plan.dim

    @property
    def dtype(self) -> str:
        """Type of the features: float32 as soon as one shard is."""
        return self.summary.dtype

    @property
    def fingerprint(self) -> Fingerprint:
        """Everything that the features depend on."""
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
            raise CacheError(str(error), remedy=WRITE_AGAIN) from error
        found = (manifest.digest, manifest.dataset, manifest.split, len(manifest.table))
        plan = self.plan
        if found != (plan.fingerprint.manifest, plan.dataset, plan.split, plan.num_rows):
            raise CacheError(
                f"{path} is not the manifest that was extracted into {self.path}",
                remedy=WRITE_AGAIN,
            )
        return manifest

    @property
    def class_names(self) -> tuple[str, ...]:
        """One name per class; a class may have no row."""
        return self.manifest.class_names

    @cached_property
    def labels(self) -> Int[np.ndarray, " rows"]:
        """Label of every row, invalid ones included."""
        return self.manifest.table["label"].to_numpy().astype(np.int64)

    @cached_property
    def valid(self) -> Bool[np.ndarray, " rows"]:
        """Which rows hold features."""
        valid = np.ones(len(self.labels), dtype=bool)
        valid[self._invalid_rows] = False
        return valid

    @property
    def groups(self) -> Int[np.ndarray, " valid"] | None:
        """The group of every row that holds features, as recorded; None if none was.

        Raises:
            CacheError: If the file of the groups is damaged, or of other images.
        """
        groups = read_groups(self.path, self.manifest)
        return None if groups is None else groups[self.valid]

    @cached_property
    def _invalid_rows(self) -> list[int]:
        return [entry.row for entry in self.summary.invalid]

    def shards(self) -> Iterator[Shard]:
        """Yield the shards in order, verified.

        Raises:
            CacheError: If a shard is missing, damaged or belongs to another plan.
        """
        for index in range(self.plan.num_shards):
            yield self.shard(index)

    def shard(self, index: int) -> Shard:
        """Read one shard, verified; see `shards`."""
        path, rows = self.path / shard_name(index), self.plan.rows(index)
        shard = read_shard(path, self.plan, index)
        first, last = (bisect_left(self._invalid_rows, row) for row in (rows.start, rows.stop))
        entries = self.summary.invalid[first:last]
        reasons = {entry.row - rows.start: entry.reason for entry in entries}
        told = self.summary.shards[index].dtype, reasons
        if told != (str(shard.features.dtype), shard.reasons):
            raise CacheError(
                f"type or invalid rows of {path} are not those that cache.json beside it names",
                remedy=WRITE_AGAIN,
            )
        if not np.array_equal(shard.labels, self.labels[rows.start : rows.stop]):
            raise CacheError(
                f"the labels in {path} are not those of the manifest beside it",
                remedy="Run the `clinit extract` command of this cache into a new folder.",
            )
        return shard

    def check_size(self) -> None:
        """Check that the shards are as large as the rows that the plan names.

        Whoever reserves memory for all rows asks first: a plan can name any number.

        Raises:
            CacheError: If one is missing, or they are smaller.
        """
        item = 2 if self.dtype == "float16" else 4
        shards = (self.path / shard_name(index) for index in range(self.plan.num_shards))
        if sum(map(file_size, shards)) < self.num_valid * self.dim * item:
            raise CacheError(
                f"the shards in {self.path} are smaller than {self.num_valid:,} rows of"
                f" {self.dim:,} numbers",
                remedy=WRITE_AGAIN,
            )

    def load(self) -> FeatureSet:
        """Read the features and labels of all valid rows, in order, into memory.

        Raises:
            CacheError: If a shard is missing, damaged or belongs to another plan.
        """
        self.check_size()
        features = np.empty((self.num_valid, self.dim), dtype=self.dtype)
        start = 0
        for shard in self.shards():
            stop = start + int(shard.valid.sum())
            features[start:stop] = shard.features[shard.valid]
            start = stop
        assert start == self.num_valid, "each shard agrees with cache.json"
        return FeatureSet(features, self.labels[self.valid], self.class_names, self.groups)


@dataclass(frozen=True, eq=False)
class Cache:
    """A feature cache: its complete splits and the pretrained head."""

    path: Path
    splits: Mapping[str, CacheSplit]
    head: Head | None

    def __repr__(self) -> str:
        rows = ", ".join(f"{name} {split.num_rows:,} rows" for name, split in self.splits.items())
        return f"<Cache {self.path}: {rows}, head {self.head}>"

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
    if not (path / SUMMARY_FILE).is_file():
        present = sum(_SHARD_NAME.fullmatch(file.name) is not None for file in path.iterdir())
        raise CacheError(
            f"{path} holds {present:,} of {plan.num_shards:,} shards:"
            " its extraction was interrupted",
            remedy="Run the same command again (`clinit extract` or `clinit cache import`); it"
            " resumes.",
        )
    return CacheSplit(path, plan, read_summary(path, plan))


def open_cache(path: Path) -> Cache:
    """Open a cache with all of its splits.

    Raises:
        CacheError: If there is none at `path`, or a split is incomplete.
    """
    splits = {name: open_split(path / name) for name in split_names(path)}
    head_path = path / HEAD_FILE
    head = read_head(head_path) if head_path.is_file() else None
    check_one_backbone(path, splits, head)
    return Cache(path, splits, head)


def check_one_backbone(path: Path, splits: Mapping[str, CacheSplit], head: Head | None) -> None:
    """Check that the splits of a cache and its head belong together.

    Args:
        path: The cache.
        splits: At least one.
        head: The pretrained head, if it is there.

    Raises:
        CacheError: If the splits are of different backbones, or the head is not the one that
            was judged on them.
    """
    first, *others = splits.values()
    plain = first.fingerprint.without_rows
    for other in others:
        for each in plain.differences(other.fingerprint.without_rows):
            one, two = each.told
            raise CacheError(
                f"the splits of {path} hold features of different backbones: {each.name} ="
                f" {one} in {first.path.name}, {two} in {other.path.name}",
                remedy="Extract both splits into one folder by one `clinit extract` command.",
            )
    if head is None:
        return
    if not plain.fits(head.fingerprint):
        raise CacheError(
            f"{path / HEAD_FILE} belongs to another backbone than the features beside it",
            remedy=WRITE_AGAIN,
        )
    # The tensors alone: a later command may have named its rows.
    digests = {split.summary.head.tensors for split in splits.values()} - {None}
    if digests - {tensors_sha256(head)}:
        raise CacheError(
            f"{path / HEAD_FILE} is not the head that was stored with the features beside it",
            remedy=WRITE_AGAIN,
        )


def shard_problem(path: Path, plan: Plan, index: int) -> str | None:
    """Return what is wrong with the content of a shard, None where it is whole.

    Raises:
        StorageError: If it cannot be read.
    """
    try:
        read_shard(path, plan, index)
    except CacheError as error:
        return str(error)
    return None


def verify_shard(split: CacheSplit, shard: int) -> str | None:
    """Compare a shard with its digests, byte by byte; return what is wrong, or None.

    Raises:
        StorageError: If it cannot be read.
    """
    path = split.path / shard_name(shard)
    try:
        split.shard(shard)
    except CacheError as error:
        return str(error)
    if file_sha256(path) != split.summary.shards[shard].sha256:
        return f"{path} has changed since it was written"
    return None

"""Read feature caches.

A cache is a folder with a sub-folder per split. A split contains `plan.json`, its manifest,
immutable shards and, once all shards are complete, `cache.json`; a split without `cache.json` is
refused. Every shard is verified against its digest as it is read. A *view*, the folder `views/<k>`
next to the splits, has the same files for random crops of the training images.

Features that do not fit into memory stay in their shards (`stored_features`). Each shard is
verified once, when the features are opened. Later, only requested rows are read, in ascending
order, after a check that the file is still the verified one. Files are not mapped into memory,
because a mapped file kills the process without a message if a disk or a network fails.
"""

from __future__ import annotations

import os
import re
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, pairwise
from pathlib import Path

import numpy as np
import polars as pl
from jaxtyping import Bool, Float, Int

from clinit.errors import CacheError, ManifestError, unreadable
from clinit.extract.cache.features import FeatureSet, StoredRows
from clinit.extract.cache.fingerprint import Fingerprint, check_view, mismatches
from clinit.extract.cache.groups import read_groups
from clinit.extract.cache.head import Head, read_head, tensors_sha256
from clinit.extract.cache.plan import SUMMARY_FILE, Plan, damaged, shard_name, split_names, views_in
from clinit.extract.cache.shard import Shard, file_sha256, read_shard
from clinit.extract.cache.summary import Summary, read_summary
from clinit.extract.dataset.manifest import MANIFEST_FILE, Manifest, read_manifest
from clinit.files.paths import is_file

HEAD_FILE = "head.safetensors"
_SHARD_NAME = re.compile(r"shard-\d{5,}\.h5")


@dataclass(frozen=True, eq=False)
class CacheSplit:
    """One complete split of a feature cache. Row i is row i of the manifest."""

    path: Path
    plan: Plan
    summary: Summary
    """The content of `cache.json`."""

    @property
    def num_rows(self) -> int:
        """Number of rows, including invalid rows."""
        return self.plan.num_rows

    @property
    def num_valid(self) -> int:
        """Number of rows with features."""
        return self.summary.num_valid

    @property
    def dim(self) -> int:
        """Width of a feature vector."""
        return self.plan.dim

    @property
    def dtype(self) -> str:
        """Type of the features: float32 if any shard is, else float16."""
        return self.summary.dtype

    @property
    def fingerprint(self) -> Fingerprint:
        """Everything that the features depend on."""
        return self.plan.fingerprint

    @cached_property
    def manifest(self) -> Manifest:
        """The manifest that the rows follow.

        Raises:
            CacheError: If the manifest is missing, damaged, or not the one that was extracted.
        """
        path = self.path / MANIFEST_FILE
        try:
            manifest = read_manifest(path)
        except ManifestError as error:
            raise damaged(str(error)) from error
        found = (manifest.digest, manifest.dataset, manifest.split, len(manifest.table))
        plan = self.plan
        if found != (plan.fingerprint.manifest, plan.dataset, plan.split, plan.num_rows):
            raise damaged(f"{path} is not the manifest that was extracted into {self.path}")
        return manifest

    @property
    def class_names(self) -> tuple[str, ...]:
        """One name per class; a class may have no row."""
        return self.manifest.class_names

    @cached_property
    def labels(self) -> Int[np.ndarray, " rows"]:
        """Label of every row, including invalid rows."""
        return self.manifest.table["label"].to_numpy().astype(np.int64)

    @cached_property
    def valid(self) -> Bool[np.ndarray, " rows"]:
        """Whether each row has features."""
        valid = np.ones(len(self.labels), dtype=bool)
        valid[self._invalid_rows] = False
        return valid

    @property
    def groups(self) -> Int[np.ndarray, " valid"] | None:
        """The group of every row with features; None if they are to be found in the features.

        Without recorded groups, no imported row repeats another.

        Raises:
            CacheError: If the file of the groups is damaged or belongs to other images.
        """
        groups = read_groups(self.path, self.manifest)
        if groups is None:
            return np.arange(self.num_valid) if self.fingerprint.is_imported else None
        found: np.ndarray = groups[self.valid]
        return found

    @cached_property
    def _invalid_rows(self) -> list[int]:
        return [entry.row for entry in self.summary.invalid]

    def shard(self, index: int) -> Shard:
        """Read and verify one shard.

        Raises:
            CacheError: If the shard is missing, damaged or belongs to another plan.
        """
        path, rows = self.path / shard_name(index), self.plan.rows(index)
        shard = read_shard(path, self.plan, index)
        first, last = (bisect_left(self._invalid_rows, row) for row in (rows.start, rows.stop))
        reasons = {each.row - rows.start: each.reason for each in self.summary.invalid[first:last]}
        told = self.summary.shards[index].dtype, reasons
        if told != (str(shard.features.dtype), shard.reasons):
            raise damaged(f"the type or the invalid rows of {path} differ from cache.json")
        return shard

    def load(self) -> FeatureSet:
        """Read the features and labels of all valid rows, in order, into memory.

        Raises:
            CacheError: If a shard is missing, damaged or belongs to another plan.
        """
        features = np.empty((self.num_valid, self.dim), dtype=self.dtype)
        start = 0
        for shard in map(self.shard, range(self.plan.num_shards)):
            stop = start + int(shard.valid.sum())
            features[start:stop] = shard.features[shard.valid].reshape(-1, self.dim)
            start = stop
        assert start == self.num_valid, "each shard agrees with cache.json"
        return FeatureSet(features, self.labels[self.valid], self.class_names, self.groups)


@dataclass(frozen=True, eq=False)
class Cache:
    """A feature cache: its complete splits and the pretrained head."""

    path: Path
    splits: Mapping[str, CacheSplit]
    head: Head | None

    def split(self, name: str) -> CacheSplit:
        """Return a split.

        Raises:
            CacheError: If the cache does not contain the split.
        """
        if name not in self.splits:
            raise CacheError(
                f"{self.path} has no split {name!r}, only {', '.join(self.splits)}",
                remedy=f"Run its `clinit extract` command with `--split {name}`.",
            )
        return self.splits[name]

    @cached_property
    def views(self) -> tuple[CacheSplit, ...]:
        """Random views of the training images, in the row order of `train`; opened on demand.

        Raises:
            CacheError: If a view is incomplete, or was not extracted like the train split.
        """
        folders = views_in(self.path)
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
        CacheError: If the split is missing or its extraction is unfinished.
    """
    plan = Plan.read(path)
    if not is_file(path / SUMMARY_FILE):
        present = sum(_SHARD_NAME.fullmatch(file.name) is not None for file in path.iterdir())
        raise CacheError(
            f"{path} contains {present:,} of {plan.num_shards:,} shards:"
            " its extraction was interrupted",
            remedy="Run the same command again (`clinit extract` or `clinit cache import`); it"
            " resumes.",
        )
    return CacheSplit(path, plan, read_summary(path, plan))


def open_cache(path: Path) -> Cache:
    """Open a cache with all of its splits.

    Raises:
        CacheError: If `path` is not a cache, or a split is incomplete.
    """
    splits = {name: open_split(path / name) for name in split_names(path)}
    head_path = path / HEAD_FILE
    head = read_head(head_path) if is_file(head_path) else None
    check_one_backbone(path, splits, head)
    return Cache(path, splits, head)


def check_one_backbone(path: Path, splits: Mapping[str, CacheSplit], head: Head | None) -> None:
    """Check that the splits of a cache and its head belong together.

    Args:
        path: The cache.
        splits: At least one split.
        head: The pretrained head, if any.

    Raises:
        CacheError: If the backbones of the splits differ, or the head was not stored with them.
    """
    first, *others = splits.values()
    plain = first.fingerprint.without_rows
    for other in others:
        for each in mismatches(plain, other.fingerprint, (first.dim, other.dim)):
            one, two = each.told
            raise CacheError(
                f"the splits of {path} contain features of different backbones: {each.name} ="
                f" {one} in {first.path.name}, {two} in {other.path.name}",
                remedy="Extract both splits into one folder by one `clinit extract` command.",
            )
    if head is None:
        return
    if not plain.fits(head.fingerprint):
        raise damaged(f"{path / HEAD_FILE} belongs to another backbone than its features")
    # Class names are not compared: a later command may have named the rows.
    digests = {split.summary.head.tensors for split in splits.values()} - {None}
    if digests - {tensors_sha256(head)}:
        raise damaged(
            f"{path / HEAD_FILE} is not the head that was stored with the features of its cache"
        )


def refuse_shared_images(caches: Sequence[Cache]) -> None:
    """Check that no image is in two of the caches.

    Raises:
        CacheError: If an image is in several caches.
    """
    for name in ("train", "val"):
        paths = []
        for split in (cache.splits[name] for cache in caches if name in cache.splits):
            place = split.fingerprint.features or split.summary.run.root or split.manifest.digest
            paths.append(split.manifest.table.select(f"{place}/" + pl.col("path")).to_series())
        twice = pl.concat(paths) if paths else pl.Series([], dtype=pl.String)
        if len(twice := twice.filter(twice.is_duplicated())):
            raise CacheError(
                f"{twice.n_unique():,} {name} images are in more than one of the caches"
                f" {', '.join(str(cache.path) for cache in caches)}, such as {twice[0]}",
                remedy="Give caches of different images.",
            )


def shard_problem(
    folder: Path, plan: Plan, index: int, split: CacheSplit | None = None
) -> str | None:
    """Return the fault in a shard; None if the shard is sound.

    Of a finished `split`, every byte is compared with the digests in its summary.

    Raises:
        StorageError: If the shard cannot be read.
    """
    path = folder / shard_name(index)
    try:
        if split is None:
            read_shard(path, plan, index)
        else:
            split.shard(index)
    except CacheError as error:
        return str(error)
    if split is not None and file_sha256(path) != split.summary.shards[index].sha256:
        return f"{path} has changed since it was written"
    return None


@dataclass(frozen=True, slots=True)
class _File:
    """One verified shard."""

    plan: Plan
    path: Path
    index: int
    place: int | None
    """Byte at which the features begin; None if the features are not contiguous in the file."""
    dtype: str
    valid: Int[np.ndarray, " rows"] | None
    """The rows with features; None if all rows have features."""
    mark: tuple[int, ...]
    """Size, modification time and inode number of the verified file."""

    def read(self, rows: Int[np.ndarray, " chosen"]) -> Float[np.ndarray, "chosen dim"]:
        """Read rows, whose numbers among the valid rows ascend.

        Raises:
            CacheError: If the file is missing or has changed.
            StorageError: If the file cannot be read.
        """
        stored = rows if self.valid is None else self.valid[rows]
        if self.place is None:
            whole: np.ndarray = read_shard(self.path, self.plan, self.index).features[stored]
            return whole.reshape(len(stored), self.plan.dim)
        found = np.empty((len(stored), self.plan.dim), self.dtype)
        row_bytes = self.plan.dim * found.itemsize
        try:
            with self.path.open("rb") as file:
                is_same = _mark(os.fstat(file.fileno())) == self.mark
                gaps = np.flatnonzero(np.diff(stored) != 1) + 1
                runs = pairwise([0, *gaps.tolist(), len(stored)])
                for first, last in runs if is_same else ():
                    raw = found[first:last].reshape(-1).view(np.uint8).data
                    file.seek(self.place + int(stored[first]) * row_bytes)
                    is_same = is_same and file.readinto(raw) == len(raw)
        except FileNotFoundError as error:
            raise damaged(f"{self.path} is missing") from error
        except OSError as error:
            raise unreadable(self.path, error) from error
        if not is_same:
            raise CacheError(
                f"{self.path} has changed since this command verified it",
                remedy="Stop the other command that writes to the cache, then run this command"
                " again.",
            )
        return found


def stored_features(split: CacheSplit) -> FeatureSet:
    """Verify all shards of a split; return the features of its valid rows, which stay on disk.

    Raises:
        CacheError: If a shard is missing, damaged or belongs to another plan.
        StorageError: If a shard cannot be read.
    """
    files = []
    for index in range(split.plan.num_shards):
        path = (split.path / shard_name(index)).absolute()  # the reader may run in another folder
        before: tuple[int, ...] = ()
        with suppress(OSError):  # `split.shard` below reports the fault
            before = _mark(path.stat())
        shard = split.shard(index)
        valid = None if shard.valid.all() else np.flatnonzero(shard.valid)
        kind = str(shard.features.dtype)
        files.append(_File(split.plan, path, index, shard.place, kind, valid, before))
    spans, dtype = map(split.plan.rows, range(len(files))), np.dtype(split.dtype)
    counts = (int(split.valid[rows.start : rows.stop].sum()) for rows in spans)
    starts = [0, *accumulate(counts)]  # of each file, among the valid rows

    def take(rows: Int[np.ndarray, " chosen"]) -> Float[np.ndarray, "chosen dim"]:
        """Read rows into an array, in the order of `rows`."""
        out = np.empty((len(rows), split.dim), dtype)
        order = np.argsort(rows, kind="stable")
        bounds = np.searchsorted(rows[order], starts)
        for file, start, (first, last) in zip(files, starts, pairwise(bounds), strict=False):
            if first < last:
                chosen = order[first:last]
                out[chosen] = file.read(rows[chosen] - start)
        return out

    rows = StoredRows(take, np.arange(split.num_valid), split.dim, dtype)
    return FeatureSet(rows, split.labels[split.valid], split.class_names, split.groups)


def _mark(status: os.stat_result) -> tuple[int, ...]:
    return status.st_size, status.st_mtime_ns, status.st_ino

"""One side of an experiment: the train and val features of a data set, and where they are from."""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from clinit.errors import CacheError
from clinit.extract.cache.features import FeatureSet
from clinit.extract.cache.fingerprint import Fingerprint
from clinit.extract.cache.head import Head
from clinit.extract.cache.read import Cache, CacheSplit, open_cache
from clinit.extract.cache.shard_rows import stored_features
from clinit.headtrain.ram import HostMemory, disk_note, left_on_disk
from clinit.stopwatch import Stopwatch

NONE_EVALUATED = "has no val split: none of its classes is evaluated"
"""End of the note of a cache without validation rows."""


@dataclass(frozen=True, slots=True, eq=False)
class Source:
    """Features to train on and features to test on, with the same classes."""

    train: FeatureSet
    val: FeatureSet
    """May have no row."""
    path: str = ""
    fingerprint: Fingerprint = field(default_factory=Fingerprint)
    """What the features depend on; its fields about rows are about the training rows."""
    val_manifest: str | None = None
    """Digest of the manifest of the validation rows."""
    val_features: str | None = None
    """Digest of the file that the validation rows were imported from."""
    head: Head | None = None
    """The pretrained head stored beside the features."""
    notes: tuple[str, ...] = ()
    memory: HostMemory | None = None
    """Where features of an experiment are on disk: what it may copy of them; None: as it likes."""
    load_s: float = 0.0

    def __post_init__(self) -> None:
        if self.train.class_names != self.val.class_names:
            raise CacheError(
                f"{self.path or 'the data'}: train and val do not have the same list of classes",
                remedy="Extract both splits by one `clinit extract` command.",
            )
        if self.train.dim != self.val.dim:
            raise ValueError(f"train is {self.train.dim} wide, val {self.val.dim}")

    def __repr__(self) -> str:
        return f"<Source {self.path}: train {self.train}, val {self.val}, head {self.head}>"

    @property
    def class_names(self) -> tuple[str, ...]:
        """One name per class; a class may have no row."""
        return self.train.class_names

    @property
    def description(self) -> dict[str, Any]:
        """What a run record says about this side."""
        imported = {
            "features_digest": self.fingerprint.features,
            "val_features_digest": self.val_features,
            "groups_digest": self.train.groups_digest,
        }
        return {
            "path": self.path,
            "fingerprint": dict(self.fingerprint.without_rows.fields),
            "manifest_digest": self.fingerprint.manifest,
            "val_manifest_digest": self.val_manifest,
            **{name: digest for name, digest in imported.items() if digest is not None},
        }


def read_source(path: Path) -> Source:
    """Read both splits of the feature cache at `path` into memory.

    Raises:
        CacheError: If there is no cache, no train split, or the splits do not fit together.
    """
    return _source(open_cache(path), set(), None)


def read_sources(*paths: Path, memory: int | None = None) -> tuple[Source, ...]:
    """Open feature caches: in memory as far as they fit, the largest splits on disk.

    Results do not depend on where features are.

    Args:
        paths: The caches.
        memory: Bytes that features and copies of their rows may take; default: what is free.

    Raises:
        CacheError: As in `read_source`.
        MachineError: If the memory does not suffice to read the caches shard by shard.
        ValueError: If `memory` is not above 0.
    """
    caches = [open_cache(path) for path in paths]
    splits = [split for cache in caches for split in cache.splits.values()]
    room = HostMemory.of(memory)
    stored = left_on_disk(splits, room)
    return tuple(_source(cache, stored, room if stored else None) for cache in caches)


def _source(cache: Cache, stored: Set[CacheSplit], memory: HostMemory | None) -> Source:
    watch = Stopwatch()

    def read(split: CacheSplit) -> FeatureSet:
        return stored_features(split) if split in stored else split.load()

    train = cache.split("train")
    features = read(train)
    notes = _invalid_rows(cache)
    if memory is not None:
        notes += [disk_note(split, memory) for split in cache.splits.values() if split in stored]
    if "val" in cache.splits:
        val, of_val = read(cache.splits["val"]), cache.splits["val"].fingerprint
    else:
        notes.append(f"{cache.path} {NONE_EVALUATED}")
        empty = np.empty((0, features.dim), dtype=features.features.dtype)
        val = FeatureSet(empty, np.empty(0, dtype=np.int64), features.class_names)
        of_val = Fingerprint()
    return Source(
        train=features,
        val=val,
        path=str(cache.path),
        fingerprint=train.fingerprint,
        val_manifest=of_val.manifest,
        val_features=of_val.features,
        head=cache.head,
        notes=tuple(notes),
        memory=memory,
        load_s=watch.total,
    )


def _invalid_rows(cache: Cache) -> list[str]:
    return [
        f"{split.path} lists {invalid:,} bad images: they are left out"
        for split in cache.splits.values()
        if (invalid := split.num_rows - split.num_valid)
    ]


def check_same_backbone(one: Fingerprint, other: Fingerprint) -> None:
    """Compare the fingerprints of two caches, in what says which backbone it was.

    Raises:
        CacheError: If fields differ (the message names them all), or the features are imported
            and name no backbone.
    """
    differing = one.without_rows.differences(other.without_rows)
    if differing:
        raise CacheError(
            "the two caches hold features of different backbones:"
            f" {', '.join(map(str, differing))}",
            remedy=_same_backbone(one, other),
        )
    if one.is_nameless:
        raise CacheError(
            "the two caches hold imported features that name no backbone: they need not be of the"
            " same one",
            remedy="Import both again with `clinit cache import --backbone NAME`.",
        )


def _same_backbone(one: Fingerprint, other: Fingerprint) -> str:
    """Return how two caches come to be of one backbone: imported features are not extracted."""
    imported = (one.is_imported, other.is_imported)
    if not any(imported):
        return "Extract both with the same options of `clinit extract`."
    if all(imported):
        return (
            "Import features of one extractor and type for both, with the same `--backbone NAME` of"
            " `clinit cache import`."
        )
    return (
        "One of them was imported: take both from `clinit extract`, or import both from the same"
        " extractor, with the same `--backbone NAME` of `clinit cache import`."
    )

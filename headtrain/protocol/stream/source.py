"""One side of an experiment: train and val features, their origin, and the head of the base.

A side may consist of several caches of one backbone: two halves of a class list, or more images of
some classes. Classes are matched by name; rows of a class are in the order of the caches.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence, Set
from dataclasses import dataclass, field
from itertools import chain, pairwise
from pathlib import Path
from typing import Any, Required, TypedDict

import numpy as np

from clinit.errors import CacheError, ExperimentError, HeadError
from clinit.extract.cache.features import FeatureSet
from clinit.extract.cache.fingerprint import Fingerprint, joined_fingerprint
from clinit.extract.cache.head import Head, read_head, tensors_sha256
from clinit.extract.cache.read import (
    Cache,
    CacheSplit,
    open_cache,
    refuse_shared_images,
    stored_features,
)
from clinit.files.documents import Count, DocumentKind, Number, content_sha256
from clinit.files.paths import is_file
from clinit.headtrain.protocol.stream.buffer import Pool, disk_note, left_on_disk
from clinit.machine import Stopwatch, free_memory
from clinit.observer import Noted, Observer, ignore
from clinit.words import number_of


@dataclass(frozen=True, slots=True, eq=False)
class Source:
    """Features to train on and features to test on, with the same classes."""

    train: FeatureSet
    val: FeatureSet
    """May have no row."""
    path: str = ""
    """The folder of the cache, or of the first of several caches."""
    others: tuple[str, ...] = ()
    """The folders of all further caches."""
    fingerprint: Fingerprint = field(default_factory=Fingerprint)
    """The facts that the features depend on; its fields about rows are about the training rows."""
    val_manifest: str | None = None
    """Digest of the manifest of the validation rows."""
    val_features: str | None = None
    """Digest of the file that the validation rows were imported from."""
    head: Head | None = None
    """The pretrained head stored with the features."""
    notes: tuple[str, ...] = ()
    memory: int | None = None
    """If features of an experiment stay on disk, the bytes for copies of rows; None: no limit."""
    load_s: float = 0.0

    def __post_init__(self) -> None:
        if self.train.class_names != self.val.class_names:
            raise CacheError(
                f"{self.path or 'the data'}: train and val do not have the same list of classes",
                remedy="Extract both splits by one `clinit extract` command.",
            )

    def __repr__(self) -> str:
        place = self.path or "in memory"
        return f"<Source {place}: train {self.train}, val {self.val}, head {self.head}>"

    @property
    def class_names(self) -> tuple[str, ...]:
        """One name per class; a class may have no row."""
        return self.train.class_names

    @property
    def description(self) -> dict[str, Any]:
        """The facts about this side for a run record; empty for `no_base`."""
        if not self.class_names:
            return {}
        imported = {
            "features_digest": self.fingerprint.features,
            "val_features_digest": self.val_features,
            "groups_digest": self.train.groups_digest,
        }
        return {
            "path": self.path,
            **({"other_paths": list(self.others)} if self.others else {}),
            "fingerprint": dict(self.fingerprint.without_rows.fields),
            "manifest_digest": self.fingerprint.manifest,
            "val_manifest_digest": self.val_manifest,
            **{name: digest for name, digest in imported.items() if digest is not None},
        }


def no_base(new: Source) -> Source:
    """Return the base of a stream that starts from nothing: no class, no row, a head of no row."""
    nothing = new.train.nothing(())
    identifier = new.fingerprint.backbone_identifier if new.fingerprint.fields else ""
    rows = np.empty((0, nothing.dim), np.float32), np.empty(0, np.float32)
    return Source(nothing, nothing, head=Head(*rows, (), identifier))


def read_source(path: Path) -> Source:
    """Read both splits of the feature cache at `path` into memory.

    Raises:
        CacheError: If there is no cache, no train split, or the splits do not fit together.
    """
    return _source(open_cache(path), set(), None)


def read_sources(*sides: Path | Sequence[Path], memory: int | None = None) -> tuple[Source, ...]:
    """Open feature caches: in memory if they fit, otherwise the largest splits on disk.

    Results do not depend on the place of the features.

    Args:
        sides: The cache of each side, or several of one backbone.
        memory: Bytes that features and copies of their rows may take; default: the free memory.

    Raises:
        CacheError: As in `read_source`, or if the caches of a side do not fit together.
    """
    every = [[side] if isinstance(side, Path) else side for side in sides]
    opened = [[open_cache(path) for path in paths] for paths in every]
    splits = [split for caches in opened for cache in caches for split in cache.splits.values()]
    most = free_memory() if memory is None else memory
    stored = left_on_disk(splits, most)
    limit = most if stored else None
    refuse_shared_images([cache for caches in opened for cache in caches])
    read = [[_source(cache, stored, limit) for cache in caches] for caches in opened]
    return tuple(
        sources[0] if len(sources) == 1 else _joined(caches, sources)
        for caches, sources in zip(opened, read, strict=True)
    )


def _joined(caches: Sequence[Cache], sources: Sequence[Source]) -> Source:
    first, *others = sources
    widths = [each.train.dim for each in sources]
    fingerprint = joined_fingerprint([each.fingerprint for each in sources], widths)
    return Source(
        train=_concatenated([each.train for each in sources]),
        val=_concatenated([each.val for each in sources]),
        path=first.path,
        others=tuple(each.path for each in others),
        fingerprint=fingerprint,
        val_manifest=content_sha256([each.val_manifest for each in sources]),
        val_features=content_sha256([each.val_features for each in sources])
        if fingerprint.features
        else None,
        head=_one_head(sources),
        notes=tuple(note for each in sources for note in each.notes),
        memory=first.memory,
        load_s=sum(each.load_s for each in sources),
    )


def _concatenated(parts: Sequence[FeatureSet]) -> FeatureSet:
    """Return all rows; classes are sorted if all parts are, else in order of appearance."""
    lists = [part.class_names for part in parts]
    names = tuple(dict.fromkeys(chain(*lists)))
    if all(one < two for each in lists for one, two in pairwise(each)):
        names = tuple(sorted(names))
    number = {name: label for label, name in enumerate(names)}
    rows_of = [np.array([number[name] for name in names_of]) for names_of in lists]
    pool = Pool(*((p.features, of[p.labels]) for p, of in zip(parts, rows_of, strict=True)))
    rows, groups = np.arange(len(pool.labels)), None
    if any(part.groups is not None for part in parts):
        groups, start = rows.copy(), 0
        for part in parts:
            stop = start + len(part.labels)
            if part.groups is not None:
                groups[start:stop] = start + np.unique(part.groups, return_inverse=True)[1]
            start = stop
    features = pool.take(rows) if all(part.is_loaded for part in parts) else pool.stored(rows)
    return FeatureSet(features, pool.labels, names, groups)


def _one_head(sources: Sequence[Source]) -> Head | None:
    """Return the head of the caches, if possible with class names."""
    heads = [each.head for each in sources if each.head is not None]
    heads.sort(key=lambda head: head.class_names is None)
    for head in heads[1:]:
        if tensors_sha256(head) != tensors_sha256(heads[0]) or (
            head.class_names not in (None, heads[0].class_names)
        ):
            raise CacheError(
                f"{' and '.join(each.path for each in sources)} hold different heads",
                remedy="Extract both with the same --head-classes.",
            )
    return heads[0] if heads else None


def _source(cache: Cache, stored: Set[CacheSplit], memory: int | None) -> Source:
    watch, first = Stopwatch(), cache.split("train")
    notes, parts = [], dict[str, FeatureSet]()
    for name, split in cache.splits.items():
        parts[name] = stored_features(split) if split in stored else split.load()
        if invalid := split.num_rows - split.num_valid:
            notes.append(f"{split.path} leaves out {number_of(invalid, 'bad image')}")
        if memory is not None and split in stored:
            notes.append(disk_note(split, memory))
    train = parts["train"]
    of_val = cache.splits["val"].fingerprint if "val" in parts else Fingerprint()
    return Source(
        train=train,
        val=parts.get("val") or train.nothing(),
        path=str(cache.path),
        fingerprint=first.fingerprint,
        val_manifest=of_val.manifest,
        val_features=of_val.features,
        head=cache.head,
        notes=tuple(notes),
        memory=memory,
        load_s=watch.total,
    )


_FACTS = DocumentKind(
    title="the description of an alignment",
    format="clinit-alignment/2",
    older=("clinit-alignment/1",),
    error=HeadError,
    remedy="Remove it, or run `clinit head align` again.",
)
"""A file of earlier versions, next to the head; now the sealed head file contains these facts."""


class AlignmentFacts(TypedDict, total=False):
    """Facts about the alignment of a head."""

    loss: Required[str]
    views: Count
    view_seed: Count | None
    augmentation: str
    epochs: Count
    batch_size: Count
    lr: Number
    weight_decay: Number
    top1_before: Number | None
    top1_after: Number | None
    started_from: str
    digest: str
    """Digest of the aligned head."""


def head_digest(head: Head) -> str:
    """Return the SHA-256 of weight, bias and class names."""
    digest = hashlib.sha256()
    for part in (head.weight, head.bias):
        digest.update(np.ascontiguousarray(part, dtype="<f4").tobytes())
    digest.update(json.dumps(head.class_names, ensure_ascii=False).encode())
    return digest.hexdigest()


def read_base_head(path: Path, observer: Observer = ignore) -> tuple[Head, dict[str, Any]]:
    """Read a head file, and return the head with the facts about it for a run record.

    The facts include the alignment of the head. Earlier versions of `clinit align` wrote them to
    `NAME.alignment.json`, which is used if its digest is the digest of this head.

    Args:
        path: The file.
        observer: Called with notes on how the file was read.

    Raises:
        HeadError: If the file is missing, or the head or its facts are damaged.
    """
    head = read_head(path, on_note=lambda note: observer(Noted(note)))
    facts, origin = head.alignment, f"the alignment in {path}"
    beside = path.with_suffix(".alignment.json")
    if facts is None and is_file(beside):
        facts, origin = _FACTS.load(beside), str(beside)
    if facts is None:
        return head, {"path": str(path)}
    _FACTS.convert(facts, AlignmentFacts, origin=origin)
    if facts.get("digest") != head_digest(head):
        return head, {"path": str(path)}
    recorded = {name: facts.get(name) for name in AlignmentFacts.__annotations__}
    del recorded["digest"]
    return head, {"path": str(path), "alignment": recorded}


def starting_head(
    base: Source, given: Head | Path | None = None, observer: Observer = ignore
) -> tuple[Head, dict[str, Any]]:
    """Return the head that runs start from, and the facts about it for a run record.

    Args:
        base: The base classes, whose cache may contain a head.
        given: Another head, or its file.
        observer: Called with notes on how the file was read.

    Raises:
        ExperimentError: If there is no head, or if a head is given without base classes.
        HeadError: If the file is missing, or the head or its facts are damaged.
    """
    if given is not None and not base.class_names:
        raise ExperimentError(
            "a pretrained head was given without its base classes",
            remedy="Give their cache too (--base CACHE; in Python, base), or leave the head out.",
        )
    if isinstance(given, Path):
        return read_base_head(given, observer)
    head = base.head if given is None else given
    if head is None:
        raise ExperimentError(
            f"{base.path or 'base'} holds no pretrained head to start from",
            remedy="Give one (--head FILE; in Python, head=), or fit one: `clinit head fit CACHE"
            " --out FILE`.",
        )
    return head, {}

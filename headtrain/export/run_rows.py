"""The cached features that a run was trained on, and those that it was evaluated on."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from clinit.errors import CacheError
from clinit.extract.cache import Cache, open_cache
from clinit.extract.features import FeatureSet
from clinit.extract.fingerprint import Fingerprint
from clinit.headtrain.record.format import RunRecord


def run_rows(record: RunRecord, num_classes: int, split: str) -> FeatureSet:
    """Return the rows of the classes of a run, of base and new ones.

    Args:
        record: Of a run with a frozen backbone; its caches are read again.
        num_classes: Classes of the model: the first ones of the record.
        split: `train`, or `val`, the rows that no head was trained on; a side that lacks it has
            none.

    Returns:
        Features with the rows of the head as labels.

    Raises:
        CacheError: If a cache is not there any more, or is another one.
    """
    names = tuple(record.classes["name"])[:num_classes]
    num_base = int((record.classes["task"] == 0).sum())
    row_of = [
        {name: row for row, name in enumerate(names[:num_base])},
        {name: row for row, name in enumerate(names[num_base:], start=num_base)},
    ]
    parts = [
        _in_rows(_rows(_cache(record, side), split), rows, names)
        for side, rows in zip(("base", "new"), row_of, strict=True)
    ]
    return FeatureSet(
        np.concatenate([part.features for part in parts]),
        np.concatenate([part.labels for part in parts]),
        names,
    )


def _cache(record: RunRecord, side: str) -> Cache:
    told = record.info[side]  # type: ignore[literal-required]
    cache = open_cache(Path(told["path"]))
    found = cache.split("train").fingerprint.without_rows
    differing = Fingerprint(told["fingerprint"]).without_rows.differences(found)
    if differing:
        raise CacheError(
            f"the cache at {told['path']} is not the one of the run: it differs in"
            f" {', '.join(each.name for each in differing)}",
            remedy="Give images instead: `clinit remember MODEL IMAGES --out NEW`.",
        )
    return cache


def _rows(cache: Cache, split: str) -> FeatureSet:
    if split in cache.splits:
        return cache.splits[split].load()
    train = cache.split("train")
    empty = np.empty((0, train.dim), dtype=train.dtype)
    return FeatureSet(empty, np.empty(0, dtype=np.int64), train.class_names)


def _in_rows(rows: FeatureSet, row_of: Mapping[str, int], names: tuple[str, ...]) -> FeatureSet:
    places = np.array([row_of.get(name, -1) for name in rows.class_names], dtype=np.int64)
    labels = places[rows.labels]
    known = labels >= 0
    return FeatureSet(rows.features[known], labels[known], names)

"""The cached features that a run was trained on, and those that it was evaluated on."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from clinit.errors import CacheError
from clinit.extract.cache import Cache, CacheSplit, open_cache
from clinit.extract.features import FeatureSet
from clinit.extract.fingerprint import Fingerprint
from clinit.headtrain.record.format import RunRecord
from clinit.headtrain.record.info import SideInfo
from clinit.headtrain.record.measured_on import is_held_out


def run_rows(
    record: RunRecord,
    num_classes: int,
    split: str,
    *,
    base: Path | None = None,
    new: Path | None = None,
) -> FeatureSet:
    """Return the rows of the classes of a run, of base and new ones.

    Args:
        record: Of a run with a frozen backbone; its caches are read again.
        num_classes: Classes of the model: the first ones of the record.
        split: `train`, or `val`, the rows that no head was trained on; a side that lacks it has
            none.
        base: The feature cache of the base classes, where it is not where the record says.
        new: That of the classes that arrived.

    Returns:
        Features with the rows of the head as labels.

    Raises:
        CacheError: If a cache is not there any more, is of another backbone, or holds other rows,
            as far as the record says which they were.
    """
    names = tuple(record.classes["name"])[:num_classes]
    num_base = int((record.classes["task"] == 0).sum())
    row_of = [
        {name: row for row, name in enumerate(names[:num_base])},
        {name: row for row, name in enumerate(names[num_base:], start=num_base)},
    ]
    sides = (record.info["base"], base), (record.info["new"], new)
    options = "--base", "--new"
    parts = [
        _in_rows(_rows(_cache(told, place, option, split), split), rows, names)
        for (told, place), option, rows in zip(sides, options, row_of, strict=True)
    ]
    return FeatureSet(
        np.concatenate([part.features for part in parts]),
        np.concatenate([part.labels for part in parts]),
        names,
    )


def _cache(told: SideInfo, place: Path | None, option: str, split: str) -> Cache:
    """Open a cache of a run, if it is the one of then."""
    path = Path(told["path"]) if place is None else place
    moved = f"Say where that one is with `{option} CACHE`."
    if place is None and not path.is_dir():
        raise CacheError(f"nothing is at {path}, where a cache of the run was", remedy=moved)
    cache = open_cache(path)
    found = cache.split("train").fingerprint.without_rows
    differing = [each.name for each in Fingerprint(told["fingerprint"]).differences(found)]
    if not differing and split in cache.splits and _are_others(told, cache.splits[split]):
        differing = [f"its {split} rows"]
    if differing:
        raise CacheError(
            f"the cache at {path} is not the one of the run: it differs in {', '.join(differing)}",
            remedy=moved,
        )
    return cache


def _are_others(told: SideInfo, split: CacheSplit) -> bool:
    """Return whether a split holds other rows than that of the run, by the digests of both.

    A record of an earlier version has none of imported files, and the trial of a search none of
    its test rows: what is not known is not compared.
    """
    prefix = "" if split.plan.split == "train" else "val_"
    then = [told.get(f"{prefix}{kind}_digest") for kind in ("manifest", "features")]
    now = split.fingerprint.manifest, split.fingerprint.features
    return any(
        isinstance(one, str) and not is_held_out(one) and one != other
        for one, other in zip(then, now, strict=True)
    )


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

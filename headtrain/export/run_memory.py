"""What an exported model remembers of the images that its run was trained on."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from clinit.errors import CacheError
from clinit.extract.features import FeatureSet
from clinit.extract.fingerprint import Fingerprint
from clinit.headtrain.export.memory import Memory, first_rows
from clinit.headtrain.record.format import RunRecord
from clinit.headtrain.stream.source import Source, read_source

HELD_OUT_PER_CLASS = 20
"""Validation features that are remembered of each class, to measure the model on later."""


def memory_of_run(record: RunRecord, num_classes: int, depends_on: Mapping[str, str]) -> Memory:
    """Return the statistics of all training rows of the classes of a run, and held-out features.

    Args:
        record: Of a run with a frozen backbone; its caches are read again.
        num_classes: Classes of the model: the first ones of the record.
        depends_on: What the features depend on.

    Raises:
        CacheError: If a cache is not there any more, or is another one.
    """
    names = tuple(record.classes["name"])[:num_classes]
    num_base = int((record.classes["task"] == 0).sum())
    row_of = [
        {name: row for row, name in enumerate(names[:num_base])},
        {name: row for row, name in enumerate(names[num_base:], start=num_base)},
    ]
    sides = [_source(record, side) for side in ("base", "new")]
    train, val = (
        _joined(
            [
                _in_rows(getattr(side, split), rows, names)
                for side, rows in zip(sides, row_of, strict=True)
            ]
        )
        for split in ("train", "val")
    )
    return Memory.of(train, depends_on, held_out=first_rows(val, HELD_OUT_PER_CLASS))


def _source(record: RunRecord, side: str) -> Source:
    told = record.info[side]  # type: ignore[literal-required]
    source = read_source(Path(told["path"]))
    differing = Fingerprint(told["fingerprint"]).without_rows.differences(
        source.fingerprint.without_rows
    )
    if differing:
        raise CacheError(
            f"the cache at {told['path']} is not the one of the run: it differs in"
            f" {', '.join(each.name for each in differing)}",
            remedy="Give images instead: `clinit remember MODEL IMAGES --out NEW`.",
        )
    return source


def _in_rows(rows: FeatureSet, row_of: Mapping[str, int], names: tuple[str, ...]) -> FeatureSet:
    places = np.array([row_of.get(name, -1) for name in rows.class_names], dtype=np.int64)
    labels = places[rows.labels]
    known = labels >= 0
    return FeatureSet(rows.features[known], labels[known], names)


def _joined(parts: list[FeatureSet]) -> FeatureSet:
    return FeatureSet(
        np.concatenate([part.features for part in parts]),
        np.concatenate([part.labels for part in parts]),
        parts[0].class_names,
    )

"""Damaged files; a sample of `benchmarks/faults.py`."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from fault_trials.damage import damage
from fault_trials.trial import Failure, Trial

NUMBER, LETTER = "flipped bit of a number", "flipped bit of a letter"
VALUE, TOLD, TABLE = "a value of the document", "a value of the metadata", "the table"
CASES = [
    ("caches/base/train/plan.json", LETTER, 0),
    ("caches/base/train/cache.json", VALUE, 0),
    ("caches/base/val/cache.json", VALUE, 1),
    ("caches/base/train/manifest.parquet", TABLE, 0),
    ("caches/base/train/shard-00000.h5", NUMBER, 0),
    ("caches/base/train/shard-00000.h5", "the file of another", 0),
    ("caches/base/head.safetensors", NUMBER, 0),
    ("caches/base/views/0/shard-00000.h5", "a block of zeros", 0),
    ("cache/head.safetensors", NUMBER, 0),
    ("runs/random/run.json", VALUE, 0),
    ("runs/random/evaluations.parquet", TABLE, 1),
    ("runs/random/points.parquet", "cut in the middle", 0),
    ("runs/random/head.safetensors", NUMBER, 0),
    ("top/random/top.safetensors", NUMBER, 0),
    ("top/trunk-cache/*-val-*/shard-00000.h5", NUMBER, 0),
    ("kept/random.checkpoint", NUMBER, 0),
    ("kept/random.checkpoint", TOLD, 0),
    ("aligned.safetensors", "flipped bit near the end", 0),
    ("aligned.safetensors", TOLD, 0),
    ("sweep/sweep.json", VALUE, 0),
    ("sweep/random-lr=0.001-seed=0/run.json", VALUE, 0),
    ("search/study.db", "cut in the middle", 0),
    ("model.safetensors", TOLD, 0),
    ("model.safetensors", NUMBER, 0),
    ("scenes/memory.safetensors", NUMBER, 0),
    ("scenes/memory.safetensors", "the file of another", 0),
    ("scenes/config.json", VALUE, 0),
    ("train.parquet", TABLE, 0),
    ("shards/train-0.tar", "flipped bit of a digit", 0),
    ("shards/train-0.tar", "a block of zeros", 0),
    ("tables/train-0.parquet", NUMBER, 0),
    ("tables/train-0.parquet", TABLE, 0),
    ("weights.safetensors", NUMBER, 0),
]
"""File, sort of damage, and number of the place."""


@pytest.mark.parametrize(("path", "sort", "number"), CASES)
def test_a_damaged_file_is_refused_or_changes_nothing(
    failures: Callable[[Trial], list[Failure]], path: str, sort: str, number: int
) -> None:
    assert failures(damage(path, sort, number)) == []

"""Damaged files; a sample of `benchmarks/faults.py`."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from _pytest.mark.structures import ParameterSet
from fault_trials.damage import damage
from fault_trials.trial import Failure, Trial

NUMBER, LETTER = "flipped bit of a number", "flipped bit of a letter"
VALUE, TOLD, TABLE = "a value of the document", "a value of the metadata", "the table"
CASES: list[tuple[str, str, int, int | None]] = [
    ("caches/base/train/plan.json", LETTER, 0, None),
    ("caches/base/train/cache.json", VALUE, 0, None),
    ("caches/base/val/cache.json", VALUE, 1, None),
    ("caches/base/train/manifest.parquet", TABLE, 0, None),
    ("caches/base/train/shard-00000.h5", NUMBER, 0, None),
    ("caches/base/train/shard-00000.h5", "the file of another", 0, None),
    ("caches/base/head.safetensors", NUMBER, 0, 5),
    ("caches/base/views/0/shard-00000.h5", "a block of zeros", 0, None),
    ("cache/head.safetensors", NUMBER, 0, 5),
    ("runs/random/run.json", VALUE, 0, 5),
    ("runs/random/evaluations.parquet", TABLE, 1, 5),
    ("runs/random/points.parquet", "cut in the middle", 0, None),
    ("runs/random/head.safetensors", NUMBER, 0, 5),
    ("top/random/top.safetensors", NUMBER, 0, 5),
    ("top/trunk-cache/*-val-*/shard-00000.h5", NUMBER, 0, 15),
    ("kept/random.checkpoint", NUMBER, 0, 5),
    ("kept/random.checkpoint", TOLD, 0, None),
    ("aligned.safetensors", "flipped bit near the end", 0, 5),
    ("aligned.alignment.json", VALUE, 0, None),
    ("sweep/sweep.json", VALUE, 0, None),
    ("sweep/random-lr=0.001-seed=0/run.json", VALUE, 0, 5),
    ("search/study.db", "cut in the middle", 0, 19),
    ("model.safetensors", TOLD, 0, 6),
    ("model.safetensors", NUMBER, 0, None),
    ("train.parquet", TABLE, 0, None),
    ("weights.safetensors", NUMBER, 0, None),
]
"""File, sort of damage, number of the place, and the fault that is not mended yet."""


def marked(path: str, sort: str, number: int, fault: int | None) -> ParameterSet:
    marks = [pytest.mark.xfail(strict=True, reason=f"fault {fault}")] if fault else []
    return pytest.param(path, sort, number, marks=marks)


@pytest.mark.parametrize(("path", "sort", "number"), [marked(*case) for case in CASES])
def test_a_damaged_file_is_refused_or_changes_nothing(
    failures: Callable[[Trial], list[Failure]], path: str, sort: str, number: int
) -> None:
    assert failures(damage(path, sort, number)) == []

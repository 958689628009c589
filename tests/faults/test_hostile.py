"""Hostile input; a sample of `benchmarks/faults.py`."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from itertools import groupby

import pytest
from _pytest.mark.structures import ParameterSet
from fault_trials.hostile import hostiles
from fault_trials.trial import Failure, Trial

EACH = 2
"""Trials of a kind of input, beside those that are always made."""
SLOW = re.compile(
    r"000 x|a bomb|GB of text|000 frames|compressed|deep|long|million|batch_size|10\^9"
)
ALWAYS = (
    "hostile: model_args: checkpoint_path, model",
    "hostile: model_args: checkpoint_path, plan, export",
    "hostile: links: link at cache/train/.lock, cache import",
    "hostile: links: dangling link at sweep/.lock, sweep",
    r"hostile: escapes: '\x1b]0;owned\x07' in model, classes",
    r"hostile: escapes: '\x9b31mred' in class folders, manifest",
    "hostile: HDF5: features elsewhere, cache/train/shard-00000.h5, diagnose, imported",
    "hostile: words: 'seed=0:100000000000', --dry-run",
    "hostile: words: 3 columns, report",
    "hostile: arrays: features.npy, pickle f",
    "hostile: Parquet: runs/random/classes.parquet is a bomb, export",
)


def sample() -> Iterator[Trial]:
    every = {trial.title: trial for trial in hostiles(count=4000, seed=0)}
    yield from (every.pop(title) for title in ALWAYS)
    for _, kind in groupby(sorted(every.values(), key=group_of), key=group_of):
        quick = [trial for trial in kind if not SLOW.search(trial.title)]
        yield from quick[:: -(-len(quick) // EACH)]


def group_of(trial: Trial) -> str:
    return trial.group


TRIALS = {trial.title: trial for trial in sample()}
NOT_MENDED = {
    "hostile: JSON: runs/random/run.json, half, report, 38": 6,
    "hostile: links: link at cache/train/.lock, cache import": 2,
    "hostile: links: dangling link at sweep/.lock, sweep": 2,
    "hostile: links: hard link at cache/val/.lock, extract": 2,
    "hostile: Parquet: runs/random/classes.parquet is a bomb, export": 7,
    "hostile: words: 'seed=0:100000000000', --dry-run": 7,
    "hostile: words: 'seed=0:100000000000', --search": 7,
    "hostile: HDF5: features elsewhere, cache/train/shard-00000.h5, diagnose, imported": 15,
    "hostile: HDF5: 2^40 invalid rows, cache/train/shard-00000.h5, diagnose, imported": 15,
    r"hostile: escapes: '\x1b]0;owned\x07' in model, classes": 14,
    r"hostile: escapes: '\x9b31mred' in class folders, manifest": 14,
}
"""The faults that the trials still find."""


def marked(title: str) -> ParameterSet:
    fault = NOT_MENDED.get(title)
    marks = [pytest.mark.xfail(strict=True, reason=f"fault {fault}")] if fault else []
    return pytest.param(title, marks=marks)


@pytest.mark.parametrize("title", [marked(title) for title in TRIALS])
def test_hostile_input_is_refused_in_a_sentence_or_does_no_harm(
    failures: Callable[[Trial], list[Failure]], title: str
) -> None:
    assert failures(TRIALS[title]) == []

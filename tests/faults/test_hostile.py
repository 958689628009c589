"""Hostile input; a sample of `benchmarks/faults.py`."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from itertools import groupby

import pytest
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


@pytest.mark.parametrize("title", TRIALS)
def test_hostile_input_is_refused_in_a_sentence_or_does_no_harm(
    failures: Callable[[Trial], list[Failure]], title: str
) -> None:
    assert failures(TRIALS[title]) == []

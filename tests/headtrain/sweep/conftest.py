"""A small stream in memory: eight base classes, six new ones."""

from collections.abc import Callable

import numpy as np
import pytest

from clinit.extract.cache.features import FeatureSet
from clinit.extract.cache.fingerprint import Fingerprint
from clinit.extract.cache.head import Head
from clinit.headtrain.runs import RunData
from clinit.headtrain.stream.source import Source
from clinit.headtrain.study.study import Study
from clinit.headtrain.sweep.grid import distinct, parse_grid, runs_of

DIM, BASE, NEW = 12, 8, 6


def _centres(count: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(count, DIM))


def _blobs(prefix: str, rows: int, seed: int, classes: int, place: int) -> FeatureSet:
    labels = np.repeat(np.arange(classes), rows)
    noise = np.random.default_rng(seed).normal(size=(len(labels), DIM))
    features = (_centres(classes, place)[labels] + 0.7 * noise).astype(np.float16)
    return FeatureSet(features, labels, tuple(f"{prefix}{i}" for i in range(classes)))


@pytest.fixture
def data() -> RunData:
    """Gaussian classes, and a head that knows those of the base."""
    mean = 4 * _centres(BASE, 1)
    head = Head(
        mean.astype(np.float32),
        (-(mean**2).sum(1) / 8).astype(np.float32),
        tuple(f"base{i}" for i in range(BASE)),
    )
    base, new = (
        Source(
            _blobs(name, 20, seed, classes, place),
            _blobs(name, 6, seed + 1, classes, place),
            path=f"caches/{name}",
            fingerprint=Fingerprint({"weights": "1", "manifest": name}),
            val_manifest=f"{name} val",
        )
        for name, seed, classes, place in (("base", 1, BASE, 1), ("new", 3, NEW, 2))
    )
    return RunData(base, new, head)


@pytest.fixture
def make_runs() -> Callable[..., list[Study]]:
    """Compile grid words; a stream of two tasks and six updates unless told."""

    def make(*words: str) -> list[Study]:
        small = {"device": "cpu", "tasks": "2", "iterations": "6", "eval_every": "3"}
        small |= {"batch_size": "8", "buffer": "20"}
        small |= dict(word.split("=", 1) for word in words)
        return distinct(runs_of(parse_grid([f"{k}={v}" for k, v in small.items()])))

    return make

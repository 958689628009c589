"""How many copies of rows a run holds at a time, with the cyclic collector switched off."""

from __future__ import annotations

import gc
import tracemalloc
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import torch

from clinit.extract.cache.features import FeatureSet
from clinit.extract.cache.fingerprint import Fingerprint
from clinit.extract.cache.head import Head
from clinit.headtrain.experiment import run_experiment
from clinit.headtrain.runs import RunData
from clinit.headtrain.stream import buffer as pool_module
from clinit.headtrain.stream.buffer import Pool
from clinit.headtrain.stream.source import Source
from clinit.headtrain.study.study import Study
from tests.headtrain.train.test_loop import STEPS, make_steps

DIM, CLASSES = 8, 4
STREAM = {"tasks": 2, "device": "cpu"}
TRAINED = {**STREAM, "iterations": 2, "eval_every": 2, "batch_size": 8}
RUNS = {
    "joint": {**TRAINED, "method": "joint"},
    "new rows to start from": {
        **{**TRAINED, "method": "joint"},
        **{"init": "least-square", "init_rows": "new"},
    },
    "a buffer to start from": {
        **{**TRAINED, "method": "naive", "buffer": 1000},
        **{"init": "least-square", "init_rows": "buffer"},
    },
    "bias correction": {**TRAINED, "method": "joint", "correct": "bic"},
    "ridge": {**STREAM, "method": "ridge"},
    "lambda": {**STREAM, "method": "ridge", "lam": "auto"},
    "slda": {**STREAM, "method": "slda"},
    "ranpac": {**STREAM, "method": "ranpac", "ranpac_width": 64},
}


@contextmanager
def without_cyclic_collector() -> Iterator[None]:
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def side(name: str, rows: int) -> Source:
    random = np.random.default_rng(len(name))
    names = tuple(f"{name}{number}" for number in range(CLASSES))

    def part(count: int) -> FeatureSet:
        features = random.standard_normal((count, DIM), dtype=np.float32).astype(np.float16)
        return FeatureSet(features, np.arange(count) % CLASSES, names)

    return Source(part(rows), part(40), fingerprint=Fingerprint({"backbone": "made"}))


@pytest.fixture(scope="module")
def data() -> RunData:
    base, new = side("base", 300), side("new", 200)
    weight = np.zeros((CLASSES, DIM), np.float32)
    identifier = base.fingerprint.backbone_identifier
    return RunData(base, new, Head(weight, weight[:, 0], base.class_names, identifier))


def most_copies(
    data: RunData, settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch, **options: Any
) -> float:
    """Return the most that is copied at a time, as a share of the features."""
    parts = (data.base.train, data.base.val, data.new.train, data.new.val)
    size: int = sum(part.features.nbytes for part in parts)
    copies: list[weakref.ref[np.ndarray]] = []
    sizes = [0]
    taken = Pool.take

    def counted(pool: Pool, rows: np.ndarray) -> np.ndarray:
        copy = taken(pool, rows)
        copies.append(weakref.ref(copy))
        there = [reference() for reference in copies]
        sizes.append(sum(each.nbytes for each in there if each is not None))
        return copy

    monkeypatch.setattr(Pool, "take", counted)
    with without_cyclic_collector():
        run_experiment(data.base, data.new, data.head, [Study.of(settings)], **options)
    return max(sizes) / size


@pytest.mark.slow
@pytest.mark.parametrize("run", RUNS)
def test_the_copies_that_a_run_holds_are_no_more_than_the_features(
    data: RunData, run: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert 0.3 < most_copies(data, RUNS[run], monkeypatch) <= 1


def test_copying_rows_needs_a_block_beside_the_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool_module, "TAKEN_AT_ONCE", 512)
    features = np.zeros((16_384, 128), np.float16)
    pool = Pool((features, np.zeros(16_384, np.int64)))
    rows = np.arange(16_384)[::-1].copy()
    tracemalloc.start()
    try:
        assert len(pool.take(rows)) == 16_384
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 1.25 * features.nbytes


@torch.no_grad()
def test_the_steps_of_a_task_are_let_go_of_with_their_last_name() -> None:
    with without_cyclic_collector():
        bank, steps = make_steps()
        steps.run(0, STEPS)
        gone = weakref.ref(steps)
        del steps
        assert gone() is None
        assert bank.num_heads == 2

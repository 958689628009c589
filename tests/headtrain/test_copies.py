"""How many copies of rows a run holds at a time, with the cyclic collector switched off."""

import gc
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

from clinit.headtrain.experiment import run_experiment
from clinit.headtrain.stream.buffer import Pool
from clinit.headtrain.study.study import Study
from tests.headtrain.test_experiment import BASE, NEW, make_base, make_head, make_new

STREAM = {"tasks": 2, "device": "cpu"}
TRAINED = {**STREAM, "iterations": 2, "eval_every": 2, "batch_size": 8}
RUNS = {
    "joint": {**TRAINED, "method": "joint"},
    "new rows": {**TRAINED, "method": "joint", "init": "least-square", "init_rows": "new"},
    "buffer": {**TRAINED, "method": "naive", "buffer": 1000, "init_rows": "buffer"},
    "bias correction": {**TRAINED, "method": "joint", "correct": "bic"},
    "lambda": {**STREAM, "method": "ridge", "lam": "auto"},
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


SIDES = make_base([75] * BASE, [20] * BASE), make_new([60] * NEW, [20] * NEW)


def most_copies(settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> float:
    """Return the most that is copied at a time, as a share of the features."""
    parts = [part for side in SIDES for part in (side.train, side.val)]
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
        run_experiment(*SIDES, make_head(), [Study.of(settings)])
    return max(sizes) / size


@pytest.mark.slow
@pytest.mark.parametrize("run", RUNS)
def test_the_copies_that_a_run_holds_are_no_more_than_the_features(
    run: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert 0.3 < most_copies(RUNS[run], monkeypatch) <= 1

"""A small stream in memory: eight base classes, seven new ones."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from clinit.extract.cache.fingerprint import Fingerprint
from clinit.headtrain.protocol.experiment import RunData
from clinit.headtrain.protocol.study.study import Study
from clinit.headtrain.protocol.sweep.grid import distinct, parse_grid, runs_of
from tests.headtrain.protocol.test_experiment import make_base, make_head, make_new


@pytest.fixture
def data() -> RunData:
    """Gaussian classes, and a head that knows those of the base."""
    base, new = (
        replace(
            side,
            path=f"caches/{side.path}",
            fingerprint=Fingerprint({"weights": "1", "manifest": str(side.path)}),
            val_manifest=f"{side.path} val",
        )
        for side in (make_base(), make_new())
    )
    return RunData(base, new, make_head())


@pytest.fixture
def make_runs() -> Callable[..., list[Study]]:
    """Compile grid words; a stream of two tasks and six updates unless told."""

    def make(*words: str) -> list[Study]:
        small = {"device": "cpu", "tasks": "2", "iterations": "6", "eval_every": "3"}
        small |= {"batch_size": "8", "buffer": "20"}
        small |= dict(word.split("=", 1) for word in words)
        return distinct(runs_of(parse_grid([f"{k}={v}" for k, v in small.items()])))

    return make

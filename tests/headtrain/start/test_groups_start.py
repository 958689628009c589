"""Starts from rows that repeat each other."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from clinit.headtrain.groups import find_groups, repeating
from clinit.headtrain.rows import Rows
from clinit.headtrain.start.initialise import initialise
from clinit.headtrain.start.new_rows import NewClasses
from clinit.headtrain.study.parts import Start

DIM, OLD, STOP = 20, 6, 10
STARTS: list[dict[str, Any]] = [
    {"init": "least-square"},
    {"init": "least-square", "bias": "keep"},
    {"init": "least-square", "weighting": "sample"},
    {"init": "fitted"},
    {"init": "lda"},
    {"init": "imprint"},
    {"init": "class-mean"},
    {"init": "class-mean", "class_mean": "unit"},
]


def arrival(seed: int = 0) -> tuple[NewClasses, np.ndarray]:
    """Return three rows for each of four new classes beside six old ones; and the centres."""
    rng = np.random.default_rng(seed)
    centres = 1.5 * rng.normal(size=(STOP, DIM))
    labels = np.concatenate([np.repeat(np.arange(OLD), 20), np.repeat(np.arange(OLD, STOP), 3)])
    features = centres[labels] + 2 * rng.normal(size=(len(labels), DIM))
    head = Rows(2 * centres, -(centres**2).sum(axis=1))
    return NewClasses(features, labels, head, OLD, STOP), centres


def repeated(data: NewClasses, times: int) -> NewClasses:
    """Return the data with each new row so many times."""
    rows = np.repeat(np.arange(len(data.labels)), np.where(data.labels < OLD, 1, times))
    more = replace(data, features=data.features[rows], labels=data.labels[rows])
    return replace(more, groups=repeating(find_groups(more.features, more.labels)))


@pytest.mark.parametrize("settings", STARTS, ids=str)
def test_copies_change_nothing(settings: dict[str, Any]) -> None:
    data, _ = arrival()
    start = Start(**settings)
    once, often = initialise(start, data), initialise(start, repeated(data, 5))
    assert once.lam == often.lam
    # The fit stops when it hardly moves, not at the minimum.
    close: dict[str, Any] = (
        {"rtol": 1e-3, "atol": 1e-4} if start.init == "fitted" else {"rtol": 1e-6, "atol": 1e-8}
    )
    np.testing.assert_allclose(often.rows.weight, once.rows.weight, **close)
    np.testing.assert_allclose(often.rows.bias, once.rows.bias, **close)

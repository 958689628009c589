"""Leave-one-out logits beside n explicit computations, each without the row."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from clinit.headtrain.array import to_numpy
from clinit.headtrain.init import NewClasses, Rows, class_statistics, raw_rows
from clinit.headtrain.init.lda import SHRINKAGE
from clinit.headtrain.init.left_out import leave_one_out
from clinit.headtrain.study import Start

DIM, START, STOP = 7, 3, 6
COUNTS = (4, 9, 1, 5, 2, 12)


def made(seed: int = 0, shift: float = 0.0) -> NewClasses:
    """Return unbalanced random data: old classes 0 to 2, new ones 3 to 5."""
    rng = np.random.default_rng(seed)
    labels = rng.permutation(np.repeat(np.arange(STOP), COUNTS))
    means = rng.normal(size=(STOP, DIM))
    features = means[labels] + rng.normal(size=(len(labels), DIM)) + shift
    head = Rows(rng.normal(size=(STOP, DIM)), rng.normal(size=STOP))
    return NewClasses(features, labels, head, START, STOP)


def left_out_logits(start: Start, data: NewClasses, lam: float | None = None) -> np.ndarray:
    statistics = class_statistics(data, start.weighting)
    rows = raw_rows(start, data, statistics if start.reads_statistics else None, lam)
    found = leave_one_out(start, rows, data, statistics if start.reads_statistics else None, lam)
    return to_numpy(found(data.features, data.labels))


def naive_weights(labels: np.ndarray, weighting: str) -> np.ndarray:
    counts = np.bincount(labels)
    if weighting == "sample":
        return np.full(len(labels), 1 / len(labels))
    return np.asarray(1 / (np.count_nonzero(counts) * counts[labels]))


def extended(features: np.ndarray) -> np.ndarray:
    return np.column_stack([features, np.ones(len(features))])


@pytest.mark.parametrize("weighting", ["class", "sample"])
@pytest.mark.parametrize("lam", [1e-4, 0.05, 3.0])
@pytest.mark.parametrize("bias", ["write", "keep"])
def test_least_square_logits_are_those_of_a_solve_without_the_row(
    weighting: Any, lam: float, bias: Any
) -> None:
    data = made(shift=2.0)
    weights = naive_weights(data.labels, weighting)
    z = extended(data.features)
    truth = np.eye(STOP)[data.labels]
    expected = []
    for row in range(len(z)):
        kept = np.arange(len(z)) != row
        weighted = z[kept] * weights[kept, None]
        system = weighted.T @ z[kept] + lam * np.eye(DIM + 1)
        head = np.linalg.solve(system, weighted.T @ truth[kept]).T[START:]
        seen = z[row].copy()
        if bias == "keep":
            seen[-1] = 0.0
        expected.append(head @ seen)
    start = Start(init="least-square", lam=lam, weighting=weighting, bias=bias)
    np.testing.assert_allclose(left_out_logits(start, data, lam), expected, rtol=1e-10, atol=1e-11)


@pytest.mark.parametrize("bias", ["write", "keep"])
@pytest.mark.parametrize("weighting", ["class", "sample"])
def test_discriminants_are_those_of_means_and_a_covariance_without_the_row(
    weighting: Any, bias: Any
) -> None:
    data = made(1)
    h, labels = data.features, data.labels
    weights = naive_weights(labels, weighting)
    expected = []
    for row in range(len(h)):
        kept = np.arange(len(h)) != row
        means = np.array([h[kept & (labels == c)].mean(0) if (kept & (labels == c)).any()
                          else np.zeros(DIM) for c in range(STOP)])  # fmt: skip
        centred = h[kept] - means[labels[kept]]
        within = (centred * weights[kept, None]).T @ centred
        solved = np.linalg.solve((1 - SHRINKAGE) * within + SHRINKAGE * np.eye(DIM), means.T).T
        biases = -0.5 * (solved * means).sum(1) if bias == "write" else np.zeros(STOP)
        expected.append((solved @ h[row] + biases)[START:])
    start = Start(init="lda", weighting=weighting, bias=bias)
    np.testing.assert_allclose(left_out_logits(start, data), expected, rtol=1e-8, atol=1e-9)


@pytest.mark.parametrize("bias", ["write", "keep"])
@pytest.mark.parametrize("mean", ["raw", "unit", "imprint"])
def test_means_are_those_without_the_row(mean: str, bias: Any) -> None:
    data = made(2)
    h, labels = data.features, data.labels
    units = h / np.linalg.norm(h, axis=1, keepdims=True)
    source = h if mean == "raw" else units
    constant = 1.0 if mean == "raw" and bias == "write" else 0.0
    expected = []
    for row in range(len(h)):
        kept = np.arange(len(h)) != row
        logits = []
        for c in range(START, STOP):
            weight = source[kept & (labels == c)].mean(0)
            if mean == "imprint":
                weight = weight / np.linalg.norm(weight)
            logits.append(weight @ h[row] + constant)
        expected.append(logits)
    init: Any = "imprint" if mean == "imprint" else "class-mean"
    start = Start(init=init, class_mean="unit" if mean == "unit" else "raw", bias=bias)
    np.testing.assert_allclose(left_out_logits(start, data), expected, rtol=1e-10, atol=1e-11)


@pytest.mark.parametrize("init", ["class-mean", "imprint", "lda"])
def test_the_only_row_of_a_class_leaves_zeros_behind(init: Any) -> None:
    data = made(3)
    alone = np.flatnonzero(data.labels == 4)[1:]
    fewer = np.delete(np.arange(len(data.labels)), alone)
    data = replace(data, features=data.features[fewer], labels=data.labels[fewer])
    (row,) = np.flatnonzero(data.labels == 4)
    logit = left_out_logits(Start(init=init), data)[row, 4 - START]
    assert logit == (1.0 if init == "class-mean" else 0.0)

from __future__ import annotations

import numpy as np
import pytest
import torch

from clinit.headtrain.correction import weight_aligned
from clinit.headtrain.rows import Rows

OLD, NEW, UNSEEN = 5, 3, 2


def head(seed: int = 0) -> Rows:
    rng = np.random.default_rng(seed)
    return Rows(rng.normal(size=(OLD + NEW + UNSEEN, 4)) * 3, rng.normal(size=OLD + NEW + UNSEEN))


def as_in_pycil(weight: np.ndarray, increment: int) -> tuple[np.ndarray, float]:
    """The published code, for a head that ends with the new classes."""
    weights = torch.from_numpy(weight.copy())
    norms = torch.norm(weights, p=2, dim=1)
    gamma = norms[:-increment].mean() / norms[-increment:].mean()
    weights[-increment:] *= gamma
    return weights.numpy(), float(gamma)


def test_new_rows_get_the_mean_norm_of_the_old_ones_and_keep_their_biases() -> None:
    rows = head()
    found = weight_aligned(rows, OLD, OLD + NEW)
    expected, gamma = as_in_pycil(rows.weight[: OLD + NEW], NEW)
    np.testing.assert_allclose(found.rows.weight, expected[OLD:])
    np.testing.assert_array_equal(found.rows.bias, rows.bias[OLD : OLD + NEW])
    assert found.facts() == {"factor": pytest.approx(gamma), "shift": 0.0}
    norms = np.linalg.norm(found.rows.weight, axis=1)
    assert norms.mean() == pytest.approx(np.linalg.norm(rows.weight[:OLD], axis=1).mean())


def test_aligning_twice_is_aligning_once() -> None:
    rows = head()
    once = weight_aligned(rows, OLD, OLD + NEW)
    rows.weight[OLD : OLD + NEW] = once.rows.weight
    assert weight_aligned(rows, OLD, OLD + NEW).factor == pytest.approx(1)


def test_rows_of_zeros_stay_so() -> None:
    rows = head()
    rows.weight[OLD : OLD + NEW] = 0
    found = weight_aligned(rows, OLD, OLD + NEW)
    assert found.factor == 1
    assert not found.rows.weight.any()

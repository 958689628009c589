from __future__ import annotations

import hashlib

import numpy as np
import pytest

from clinit.headtrain.closed.moments import FeatureMap, median_gamma

ROWS = np.random.default_rng(0).normal(size=(40, 5)).astype(np.float32)


def drawn(kind: str, seed: int = 0, member: int = 0, width: int = 30) -> FeatureMap:
    if kind == "relu":
        return FeatureMap.relu(5, width, seed=seed)
    return FeatureMap.rff(5, width, gamma=0.3, seed=seed, member=member)


def test_relu_features_are_products_cut_off_at_zero() -> None:
    made = drawn("relu")
    for row, found in zip(ROWS, made(ROWS), strict=True):
        expected = [max(0.0, float(row @ made.weight[:, j])) for j in range(30)]
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


def test_fourier_features_are_cosines_of_products() -> None:
    made = drawn("rff")
    assert made.phase is not None
    for row, found in zip(ROWS, made(ROWS), strict=True):
        angles = [float(row @ made.weight[:, j]) + made.phase[j] for j in range(30)]
        np.testing.assert_allclose(found, np.sqrt(2 / 30) * np.cos(angles), atol=1e-5)


def test_products_of_fourier_features_approach_the_kernel() -> None:
    mapped = drawn("rff", width=40_000)(ROWS).astype(float)
    squares = ((ROWS[:, None] - ROWS[None]) ** 2).sum(2)
    np.testing.assert_allclose(mapped @ mapped.T, np.exp(-0.3 * squares), atol=0.03)


@pytest.mark.parametrize("kind", ["relu", "rff"])
def test_a_seed_gives_the_same_features_and_another_one_others(kind: str) -> None:
    one, again, other = drawn(kind), drawn(kind), drawn(kind, seed=1)
    assert one.description == again.description
    np.testing.assert_array_equal(one(ROWS), again(ROWS))
    assert one.description["sha256"] != other.description["sha256"]


def test_the_description_says_how_to_draw_it_again() -> None:
    made = drawn("rff", seed=4)
    assert made.phase is not None
    told = made.description
    digest = hashlib.sha256(made.weight.tobytes() + made.phase.tobytes()).hexdigest()
    assert told == {
        "kind": "rff",
        "width": 30,
        "input_dim": 5,
        "seed": 4,
        "member": 0,
        "sha256": digest,
        "gamma": 0.3,
    }
    assert "gamma" not in drawn("relu").description


@pytest.mark.parametrize("kind", ["relu", "rff"])
def test_some_columns_are_those_of_the_whole(kind: str) -> None:
    made = drawn(kind)
    np.testing.assert_allclose(made(ROWS, slice(4, 9)), made(ROWS)[:, 4:9], rtol=1e-5, atol=1e-6)


def test_of_many_rows_a_seeded_draw_sets_the_width() -> None:
    many = np.random.default_rng(1).normal(size=(3000, 5)).astype(np.float32)
    assert median_gamma(many, 0) == median_gamma(many, 0) != median_gamma(many, 1)
    assert median_gamma(many, 0) == pytest.approx(1 / 8.7, rel=0.1)

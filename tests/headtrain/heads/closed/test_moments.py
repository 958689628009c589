import hashlib

import numpy as np
import pytest

from clinit.headtrain.heads.closed.moments import (
    ClassMoments,
    FeatureMap,
    median_gamma,
    plus_diagonal,
)

ROWS = np.random.default_rng(0).normal(size=(40, 5)).astype(np.float32)
LABELS = np.array([0, 1, 1, 3] * 10)


def drawn(kind: str, seed: int = 0, width: int = 30) -> FeatureMap:
    if kind == "relu":
        return FeatureMap.relu(5, width, seed=seed)
    return FeatureMap.rff(5, width, gamma=0.3, seed=seed)


def test_sums_in_parts_are_those_of_all_mapped_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FeatureMap, "block_rows", 7)
    mapped, parts = drawn("relu"), []
    for chosen, classes in ((slice(0, 14), 4), (slice(14, None), 5)):
        part = ClassMoments.like(np.zeros(1), 30)
        part.grow(4)
        part.grow(classes)
        part.add_mapped(ROWS[chosen], LABELS[chosen], mapped)
        part.grow(5)
        parts.append(part)
    parts[0].merge(parts[1])
    rows, found = mapped(ROWS).astype(float), parts[0]
    expected = np.zeros((30, 30))
    for label in (0, 1, 3):
        own = rows[label == LABELS]
        np.testing.assert_allclose(found.means[label], own.mean(0), rtol=1e-6)
        expected += (own - own.mean(0)).T @ (own - own.mean(0))
    np.testing.assert_allclose(found.within_covariance, expected / 40, atol=1e-6)
    assert found.counts.tolist() == [10, 20, 0, 10, 0]


@pytest.mark.parametrize("size", [1, 512, 700])
def test_a_number_is_added_to_the_diagonal_alone(size: int) -> None:
    matrix = np.random.default_rng(0).normal(size=(size, size))
    before = matrix.copy()
    np.testing.assert_array_equal(plus_diagonal(matrix, 2.5), before + 2.5 * np.eye(size))
    np.testing.assert_array_equal(matrix, before)


@pytest.mark.parametrize("kind", ["relu", "rff"])
def test_features_are_their_formula_for_all_columns_and_for_some(kind: str) -> None:
    made = drawn(kind)
    products = ROWS.astype(float) @ made.weight
    expected = np.maximum(products, 0)
    if made.phase is not None:
        expected = np.sqrt(2 / 30) * np.cos(products + made.phase)
    np.testing.assert_allclose(made(ROWS), expected, atol=1e-5)
    np.testing.assert_allclose(made(ROWS, slice(4, 9)), expected[:, 4:9], atol=1e-5)


def test_products_of_fourier_features_approach_the_kernel() -> None:
    mapped = drawn("rff", width=40_000)(ROWS).astype(float)
    squares = ((ROWS[:, None] - ROWS[None]) ** 2).sum(2)
    np.testing.assert_allclose(mapped @ mapped.T, np.exp(-0.3 * squares), atol=0.03)


def test_the_description_says_how_to_draw_it_again() -> None:
    made = drawn("rff", seed=4)
    assert made.phase is not None
    digest = hashlib.sha256(made.weight.tobytes() + made.phase.tobytes()).hexdigest()
    told = {"kind": "rff", "width": 30, "input_dim": 5, "seed": 4, "member": 0, "sha256": digest}
    assert made.description == {**told, "gamma": 0.3} == drawn("rff", seed=4).description
    assert "gamma" not in drawn("relu").description
    assert drawn("relu").description["sha256"] != drawn("relu", seed=1).description["sha256"]


def test_of_many_rows_a_seeded_draw_sets_the_width() -> None:
    many = np.random.default_rng(1).normal(size=(3000, 5)).astype(np.float32)
    assert median_gamma(many, 0) == median_gamma(many, 0) != median_gamma(many, 1)
    assert median_gamma(many, 0) == pytest.approx(1 / 8.7, rel=0.1)

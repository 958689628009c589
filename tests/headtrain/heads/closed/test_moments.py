import hashlib

import numpy as np
import pytest

from clinit.headtrain.heads.closed.ranpac import ClassMoments, FeatureMap, plus_diagonal
from clinit.headtrain.heads.statistics.moments import symmetric

ROWS = np.random.default_rng(0).normal(size=(40, 5)).astype(np.float32)
LABELS = np.array([0, 1, 1, 3] * 10)


def drawn(seed: int = 0) -> FeatureMap:
    return FeatureMap.drawn(np.zeros(5), 30, seed=seed)


def test_sums_in_parts_are_those_of_all_mapped_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FeatureMap, "block_rows", 7)
    mapped, parts = drawn(), []
    for chosen, classes in ((slice(0, 14), 4), (slice(14, None), 5)):
        part = ClassMoments.like(np.zeros(1), 30)
        part.grow(4)
        part.grow(classes)
        part.add_mapped(ROWS[chosen], LABELS[chosen], mapped)
        part.grow(5)
        parts.append(part)
    parts[0].merge(parts[1])
    rows, found = mapped(ROWS).astype(float), parts[0]
    for label in (0, 1, 3):
        np.testing.assert_allclose(found.sums[label], rows[label == LABELS].sum(0), rtol=1e-6)
    np.testing.assert_allclose(symmetric(found.lower), rows.T @ rows, rtol=1e-6)
    assert found.counts.tolist() == [10, 20, 0, 10, 0]


@pytest.mark.parametrize("size", [1, 512, 700])
def test_a_number_is_added_to_the_diagonal_alone(size: int) -> None:
    matrix = np.random.default_rng(0).normal(size=(size, size))
    before = matrix.copy()
    np.testing.assert_array_equal(plus_diagonal(matrix, 2.5), before + 2.5 * np.eye(size))
    np.testing.assert_array_equal(matrix, before)
    np.testing.assert_array_equal(np.tril(before) + np.tril(before, -1).T, symmetric(before))


def test_features_are_their_formula_for_all_columns_and_for_some() -> None:
    made = drawn()
    expected = np.maximum(ROWS.astype(float) @ made.weight, 0)
    np.testing.assert_allclose(made(ROWS), expected, atol=1e-5)
    np.testing.assert_allclose(made(ROWS, slice(4, 9)), expected[:, 4:9], atol=1e-5)


def test_the_description_says_how_to_draw_it_again() -> None:
    made = drawn(seed=4)
    digest = hashlib.sha256(made.weight.tobytes()).hexdigest()
    told = {"kind": "relu", "width": 30, "input_dim": 5, "seed": 4, "member": 0, "sha256": digest}
    assert made.description == told == drawn(seed=4).description
    assert drawn().description["sha256"] != digest

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from clinit.headtrain.closed import moments as moments_module
from clinit.headtrain.closed.moments import ClassMoments, FeatureMap, plus_diagonal
from tests.headtrain.closed.made import COUNTS, DIM, STOPS, rows_of


class Identity(FeatureMap):
    def __call__(self, features: Any, columns: slice = slice(None)) -> Any:
        return features


MAP = Identity("relu", 0, 0, np.eye(DIM, 500, dtype=np.float32))


def gathered(stops: tuple[int, ...] = STOPS) -> ClassMoments:
    moments = ClassMoments(np.zeros(DIM))
    for start, stop in zip((0, *stops), stops, strict=False):
        moments.grow(stop)
        moments.add(*rows_of(start, stop), MAP)
    return moments


@pytest.mark.parametrize("values", [1, 2**23])
def test_means_and_the_covariance_about_them_are_those_of_all_rows(
    values: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(moments_module, "BLOCK_VALUES", values)  # 64 rows at least
    found = gathered()
    features, labels = rows_of(0, len(COUNTS))
    expected = np.zeros((DIM, DIM))
    for label in np.unique(labels):
        own = features[labels == label].astype(float)
        np.testing.assert_allclose(found.means[label], own.mean(0), rtol=1e-12)
        expected += (own - own.mean(0)).T @ (own - own.mean(0))
    np.testing.assert_allclose(found.within_covariance, expected / len(labels), atol=1e-12)
    assert found.counts.tolist() == list(COUNTS)
    assert found.present.tolist() == [count > 0 for count in COUNTS]


def test_parts_merge_into_the_whole() -> None:
    features, labels = rows_of(0, len(COUNTS))
    parts = []
    for chosen in (slice(0, 20), slice(20, None)):
        part = ClassMoments(np.zeros(DIM))
        part.grow(len(COUNTS))
        part.add(features[chosen], labels[chosen], MAP)
        parts.append(part)
    parts[0].merge(parts[1])
    np.testing.assert_allclose(np.tril(parts[0].lower), np.tril(gathered().lower), rtol=1e-12)
    assert parts[0].counts.tolist() == list(COUNTS)


@pytest.mark.parametrize("size", [1, 512, 700])
def test_a_number_is_added_to_the_diagonal_alone(size: int) -> None:
    matrix = np.random.default_rng(0).normal(size=(size, size))
    before = matrix.copy()
    np.testing.assert_array_equal(plus_diagonal(matrix, 2.5), before + 2.5 * np.eye(size))
    np.testing.assert_array_equal(matrix, before)

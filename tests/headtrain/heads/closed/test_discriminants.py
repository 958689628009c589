from itertools import pairwise

import numpy as np
import pytest
from sklearn.covariance import OAS

from clinit.headtrain.heads.closed import methods as module
from clinit.headtrain.heads.closed.methods import Arrival, Slda
from clinit.headtrain.heads.closed.settings import SldaConfig
from tests.headtrain.heads.closed.made import COUNTS, DIM, STOPS, queries, rows_of, stream


class Transcribed:
    """The recursion as its authors write it, one row at a time."""

    def __init__(self, shrinkage: float) -> None:
        self.means = np.zeros((len(COUNTS), DIM))
        self.counts = np.zeros(len(COUNTS))
        self.covariance = np.ones((DIM, DIM))
        self.updates = 0
        self.shrinkage = shrinkage

    def fit(self, row: np.ndarray, label: int) -> None:
        apart = row - self.means[label]
        delta = np.outer(apart, apart) * self.updates / (self.updates + 1)
        self.covariance = (self.updates * self.covariance + delta) / (self.updates + 1)
        self.means[label] += apart / (self.counts[label] + 1)
        self.counts[label] += 1
        self.updates += 1

    def fit_base(self, features: np.ndarray, labels: np.ndarray) -> None:
        for label in np.unique(labels):
            self.means[label] = features[labels == label].mean(0)
            self.counts[label] = (labels == label).sum()
        self.updates = len(labels)
        self.covariance = OAS(assume_centered=True).fit(features - self.means[labels]).covariance_

    def scores(self, features: np.ndarray) -> np.ndarray:
        eye = np.eye(DIM)
        precision = np.linalg.pinv((1 - self.shrinkage) * self.covariance + self.shrinkage * eye)
        weight = self.means @ precision
        return np.asarray(features @ weight.T - 0.5 * (weight * self.means).sum(1))


@pytest.mark.parametrize("block", [1, 3, 1000])
@pytest.mark.parametrize("shrinkage", [1e-4, 0.3])
def test_blocks_of_rows_give_what_the_recursion_gives_row_by_row(
    block: int, shrinkage: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    def cut(features, labels):  # type: ignore[no-untyped-def]
        for start in range(0, len(labels), block):
            yield features[start : start + block], labels[start : start + block]

    monkeypatch.setattr(module, "cut", cut)
    form, naive = Slda(SldaConfig(shrinkage=shrinkage), np.zeros(DIM)), Transcribed(shrinkage)
    stream(form)
    features, labels = rows_of(0, 4)
    naive.fit_base(features.astype(float), labels)
    for start, stop in pairwise(STOPS):
        for row, label in zip(*rows_of(start, stop), strict=True):
            naive.fit(row.astype(float), label)
    np.testing.assert_allclose(form.covariance, naive.covariance, rtol=1e-9, atol=1e-12)
    seen = np.array(COUNTS) > 0
    found, expected = form.scores(queries()), naive.scores(queries().astype(float))
    np.testing.assert_allclose(found[:, seen], expected[:, seen], rtol=1e-4, atol=1e-3)
    assert (found[:, ~seen] < found[:, seen].min(axis=1, keepdims=True)).all()


def test_without_a_row_of_the_base_the_stream_begins_with_the_first_task() -> None:
    features, labels = rows_of(4, 6)
    empty = np.empty((0, DIM), np.float32), np.empty(0, dtype=np.int64)
    begun, plain = Slda(SldaConfig(), np.zeros(DIM)), Slda(SldaConfig(), np.zeros(DIM))
    begun.learn(Arrival(0, *empty, 4))
    for form in (begun, plain):
        form.learn(Arrival(1, features, labels, 6))
    np.testing.assert_array_equal(begun.covariance, plain.covariance)

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from sklearn.covariance import OAS

from clinit.headtrain.heads.closed import discriminants as module
from clinit.headtrain.heads.closed.discriminants import Klda, Slda
from clinit.headtrain.heads.closed.interface import Arrival
from clinit.headtrain.heads.closed.moments import FeatureMap, median_gamma
from clinit.headtrain.heads.closed.settings import KldaConfig, SldaConfig
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
        found = OAS(assume_centered=True).fit(features - self.means[labels])
        self.covariance = found.covariance_

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


WIDTH = 20
SEEN = np.flatnonzero(COUNTS)


def learnt(members: int = 1, seed: int = 5, **settings: float) -> Klda:
    config = KldaConfig(width=WIDTH, members=members, **settings)  # type: ignore[arg-type]
    form = Klda(config, np.zeros(DIM), seed=seed)
    stream(form)
    return form


def expected_logits(member: int, gamma: float, shrinkage: float | None = None) -> np.ndarray:
    """Minus half the squared Mahalanobis distances of the authors, row by row.

    Without a shrinkage, it is oracle approximating, by scikit-learn.
    """
    features, labels = rows_of(0, len(COUNTS))
    made = FeatureMap.rff(DIM, WIDTH, gamma=gamma, seed=5, member=member)
    mapped, asked = made(features).astype(float), made(queries()).astype(float)
    means = {label: mapped[labels == label].mean(0) for label in SEEN}
    scatter = np.zeros((WIDTH, WIDTH))
    for row, label in zip(mapped, labels, strict=True):
        scatter += np.outer(row - means[label], row - means[label])
    covariance = scatter / len(labels)
    if shrinkage is None:
        centred = mapped - np.stack([means[label] for label in labels])
        system = OAS(assume_centered=True).fit(centred).covariance_
    else:
        size = np.trace(covariance) / WIDTH
        system = (1 - shrinkage) * covariance + shrinkage * size * np.eye(WIDTH)
    precision = np.linalg.inv(system)
    found = np.empty((len(asked), len(SEEN)))
    for column, label in enumerate(SEEN):
        apart = asked - means[label]
        found[:, column] = -0.5 * np.einsum("nd,de,ne->n", apart, precision, apart)
    return found


def softmax(logits: np.ndarray) -> np.ndarray:
    powers = np.exp(logits - logits.max(1, keepdims=True))
    return np.asarray(powers / powers.sum(1, keepdims=True))


@pytest.mark.parametrize("settings", [{}, {"shrinkage": 1e-4}, {"shrinkage": 0.2}])
def test_klda_scores_are_those_of_the_distances_written_out(settings: dict[str, Any]) -> None:
    found = learnt(gamma=0.05, **settings).scores(queries())[:, SEEN]
    expected = expected_logits(0, 0.05, **settings)
    np.testing.assert_allclose(softmax(found.astype(float)), softmax(expected), atol=2e-3)


def test_members_add_their_probabilities() -> None:
    found = learnt(members=3, gamma=0.05).scores(queries())[:, SEEN]
    expected = sum(softmax(expected_logits(member, 0.05)) for member in range(3))
    np.testing.assert_allclose(np.exp(found), np.asarray(expected) / 3, atol=2e-3)


@pytest.mark.parametrize("first", [0, 4])
def test_the_first_rows_set_the_width_of_the_kernel(first: int) -> None:
    form = Klda(KldaConfig(width=WIDTH), np.zeros(DIM), seed=5)
    form.learn(Arrival(0, *rows_of(first, 4), 4))
    form.learn(Arrival(1, *rows_of(4, 6), 6))
    told = form.head()
    assert told is not None
    assert told.feature_map is not None
    features, labels = rows_of(first, 6 if first else 4)
    assert told.feature_map["gamma"] == median_gamma(features, 5)
    assert set(form.scores(queries()).argmax(1).tolist()) <= {*labels.tolist(), 4, 5}


def test_a_class_without_rows_never_wins_and_an_ensemble_has_no_head() -> None:
    for members in (1, 2):
        form = learnt(members=members)
        scores = form.scores(queries())
        assert np.isfinite(scores).all()
        assert 2 not in scores.argmax(1)
        assert (form.head() is None) == (members > 1)

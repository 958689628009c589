from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from sklearn.covariance import OAS
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis

from clinit.headtrain.closed.discriminants import Klda
from clinit.headtrain.closed.interface import Arrival
from clinit.headtrain.closed.moments import FeatureMap, median_gamma
from clinit.headtrain.study.methods import KldaConfig
from tests.headtrain.closed.made import COUNTS, DIM, queries, rows_of, stream

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
def test_scores_are_those_of_the_distances_written_out(settings: dict[str, Any]) -> None:
    found = learnt(gamma=0.05, **settings).scores(queries())[:, SEEN]
    expected = expected_logits(0, 0.05, **settings)
    np.testing.assert_allclose(softmax(found.astype(float)), softmax(expected), atol=2e-3)


@pytest.mark.filterwarnings("ignore:Only one sample available")
def test_the_discriminants_are_those_of_scikit_learn_without_its_priors() -> None:
    features, labels = rows_of(0, len(COUNTS))
    made = FeatureMap.rff(DIM, WIDTH, gamma=0.05, seed=5)
    peer = LinearDiscriminantAnalysis(solver="lsqr").fit(made(features).astype(float), labels)
    asked = made(queries()).astype(float)
    expected = asked @ peer.coef_.T + peer.intercept_ - np.log(peer.priors_)
    found = learnt(gamma=0.05, shrinkage=1e-9).scores(queries())[:, SEEN]
    np.testing.assert_allclose(softmax(found.astype(float)), softmax(expected), atol=2e-3)


def test_members_add_their_probabilities() -> None:
    found = learnt(members=3, gamma=0.05).scores(queries())[:, SEEN]
    expected = sum(softmax(expected_logits(member, 0.05)) for member in range(3))
    np.testing.assert_allclose(np.exp(found), np.asarray(expected) / 3, atol=2e-3)


def test_the_kernel_is_as_wide_as_the_first_rows_are_apart() -> None:
    form = learnt()
    told = form.head()
    assert told is not None
    assert told.feature_map is not None
    assert told.feature_map["gamma"] == median_gamma(rows_of(0, 4)[0], 5)


def test_without_rows_of_the_base_the_first_task_sets_the_kernel() -> None:
    form = Klda(KldaConfig(width=WIDTH), np.zeros(DIM), seed=5)
    form.learn(Arrival(0, np.empty((0, DIM), np.float32), np.empty(0, np.int64), 4))
    features, labels = rows_of(4, 6)
    form.learn(Arrival(1, features, labels, 6))
    told = form.head()
    assert told is not None
    assert told.feature_map is not None
    assert told.feature_map["gamma"] == median_gamma(features, 5)
    assert set(form.scores(queries()).argmax(1).tolist()) <= {4, 5}


def test_it_does_not_matter_in_what_tasks_the_classes_come() -> None:
    other = Klda(KldaConfig(width=WIDTH, gamma=0.05), np.zeros(DIM), seed=5)
    stream(other, stops=(4, 5, 8, 9))
    one, two = (softmax(form.scores(queries())) for form in (other, learnt(gamma=0.05)))
    np.testing.assert_allclose(one, two, atol=1e-4)


def test_a_class_without_rows_never_wins_and_an_ensemble_has_no_head() -> None:
    for members in (1, 2):
        form = learnt(members=members)
        scores = form.scores(queries())
        assert np.isfinite(scores).all()
        assert 2 not in scores.argmax(1)
        assert (form.head() is None) == (members > 1)

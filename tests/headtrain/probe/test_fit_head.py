from __future__ import annotations

import numpy as np
import pytest
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.linear_model import LogisticRegression
from sklearn.preprocessing import StandardScaler

from clinit.errors import CacheError
from clinit.extract.features import FeatureSet
from clinit.headtrain.least_squares.api import least_squares
from clinit.headtrain.probe.fit_head import HeadFit, fit_head
from clinit.headtrain.stream.source import Source

NAMES = ("ant", "none", "bee", "cat")


def source(per_class: int = 60, seed: int = 0) -> Source:
    """Return rows of three overlapping classes; the class `none` has none."""
    rng = np.random.default_rng(seed)
    labels = np.repeat([0, 2, 3], per_class)
    features = rng.standard_normal((len(labels), 6)) + 2 + 1.3 * np.eye(6)[labels]
    train = FeatureSet(features.astype(np.float32), labels, NAMES)
    return Source(train=train, val=train.part(np.zeros(len(labels), dtype=bool)))


def logits(head: object, rows: FeatureSet) -> np.ndarray:
    return np.asarray(rows.features @ head.weight.T + head.bias)  # type: ignore[attr-defined]


def test_logistic_is_that_of_scikit_learn_on_standardised_features() -> None:
    data = source()
    head = fit_head(data, "logistic")
    assert head.class_names == ("ant", "bee", "cat")
    assert head.origin is not None
    assert (head.origin["fitted"], head.origin["rows"]) == ("logistic", 180)
    scaler = StandardScaler().fit(data.train.features)
    peer = LogisticRegression(C=head.origin["c"], max_iter=10_000, tol=1e-10)
    peer.fit(scaler.transform(data.train.features), data.train.labels)
    expected = peer.decision_function(scaler.transform(data.train.features))
    found = logits(head, data.train)
    centred = [each - each.mean(axis=1, keepdims=True) for each in (found, expected)]
    np.testing.assert_allclose(centred[0], centred[1], atol=5e-3)


def test_ridge_is_least_squares_divided_by_a_temperature() -> None:
    data = source()
    head = fit_head(data, "ridge")
    assert head.origin is not None
    labels = np.searchsorted([0, 2, 3], data.train.labels)
    expected = least_squares(data.train.features, labels, lam=head.origin["lam"])
    temperature = head.origin["temperature"]
    assert 0 < temperature < 1  # scores of [0, 1] are too alike
    np.testing.assert_allclose(head.weight * temperature, expected.weight, atol=1e-6)
    np.testing.assert_allclose(head.bias * temperature, expected.bias, atol=1e-6)


def test_lda_labels_rows_like_that_of_scikit_learn() -> None:
    data = source(per_class=200)
    head = fit_head(data, "lda")
    assert head.origin is not None
    assert head.origin["temperature"] > 0
    labels = np.searchsorted([0, 2, 3], data.train.labels)
    peer = LinearDiscriminantAnalysis(solver="lsqr").fit(data.train.features, labels)
    agree = logits(head, data.train).argmax(axis=1) == peer.predict(data.train.features)
    assert agree.mean() > 0.99


@pytest.mark.parametrize("by", ["ridge", "lda"])
def test_their_probabilities_fit_rows_that_they_have_not_seen(by: HeadFit) -> None:
    head, other = fit_head(source(per_class=2000), by), source(per_class=2000, seed=1).train
    found = logits(head, other)
    chances = np.exp(found) / np.exp(found).sum(axis=1, keepdims=True)
    right = found.argmax(axis=1) == np.searchsorted([0, 2, 3], other.labels)
    assert chances.max(axis=1).mean() == pytest.approx(right.mean(), abs=0.03)


def test_with_few_rows_no_temperature_is_fitted() -> None:
    head = fit_head(source(per_class=4), "ridge")
    assert head.origin is not None
    assert "temperature" not in head.origin


def test_single_rows_are_enough_for_solutions_and_not_for_a_choice() -> None:
    alone = source(per_class=1)
    assert fit_head(alone, "lda").num_classes == 3
    assert fit_head(alone, "ridge").num_classes == 3
    with pytest.raises(CacheError, match="every class has a single training row") as caught:
        fit_head(alone, "logistic")
    assert caught.value.remedy == "Fit the head with `--fit-head ridge` or `--fit-head lda`."


def test_one_class_is_nothing_to_tell_apart() -> None:
    data = source()
    one = data.train.part(data.train.labels == 2)
    with pytest.raises(CacheError, match="1 of its classes have training rows"):
        fit_head(Source(train=one, val=data.val), "ridge")

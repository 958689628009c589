from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from sklearn.calibration import CalibratedClassifierCV
from sklearn.linear_model import Ridge
from sklearn.utils.estimator_checks import parametrize_with_checks

import clinit
from clinit.headtrain.least_squares.classifier import LeastSquaresClassifier


@parametrize_with_checks([LeastSquaresClassifier(), LeastSquaresClassifier(lam=0.05)])  # type: ignore[untyped-decorator]
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.SkipTestWarning")
def test_it_passes_every_check_of_scikit_learn(
    estimator: LeastSquaresClassifier, check: Callable[..., Any]
) -> None:
    check(estimator)


def rows(seed: int = 0, count: int = 90) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    numbers = rng.integers(0, 3, count)
    features = rng.standard_normal((count, 8)) + 3 + 1.2 * np.eye(8)[numbers]
    return features, np.array(["ant", "bee", "cat"])[numbers]


@pytest.mark.parametrize("weighting", ["sample", "class"])
def test_the_head_is_that_of_least_squares(weighting: Any) -> None:
    features, labels = rows()
    model = LeastSquaresClassifier(lam=0.02, weighting=weighting).fit(features, labels)
    numbers = np.unique(labels, return_inverse=True)[1]
    expected = clinit.least_squares(features, numbers, lam=0.02, weighting=weighting)
    np.testing.assert_allclose(model.coef_, expected.weight, rtol=1e-9)
    np.testing.assert_allclose(model.intercept_, expected.bias, rtol=1e-9)
    assert model.classes_.tolist() == ["ant", "bee", "cat"]
    assert model.score(features, labels) > 0.6


def test_it_is_the_ridge_of_scikit_learn_with_the_bias_as_a_feature() -> None:
    features, labels = rows()
    model = LeastSquaresClassifier(lam=0.02).fit(features, labels)
    targets = (labels[:, None] == model.classes_).astype(float)
    extended = np.c_[features, np.ones(len(labels))]
    reference = Ridge(alpha=0.02 * len(labels), fit_intercept=False).fit(extended, targets)
    np.testing.assert_allclose(
        model.decision_function(features), reference.predict(extended), atol=1e-9
    )


def test_of_two_classes_the_score_is_the_difference() -> None:
    features, labels = rows()
    two = labels != "cat"
    model = LeastSquaresClassifier(lam=0.02).fit(features[two], labels[two])
    scores = model.decision_function(features[two])
    assert scores.shape == (two.sum(),)
    assert model.coef_.shape == (1, 8)
    assert (model.predict(features[two]) == np.where(scores > 0, "bee", "ant")).all()


@pytest.mark.parametrize("lam", [0.02, "auto"])
def test_rows_in_parts_give_the_head_that_they_give_together(lam: float | str) -> None:
    features, labels = rows()
    order = np.argsort(labels)  # some parts lack classes
    whole = LeastSquaresClassifier(lam=lam)
    whole.partial_fit(features, labels, classes=["ant", "bee", "cat"])
    model = LeastSquaresClassifier(lam=lam)
    for part in np.array_split(order, 7):
        model.partial_fit(features[part], labels[part], classes=["cat", "ant", "bee"])
    np.testing.assert_allclose(model.coef_, whole.coef_, rtol=1e-8, atol=1e-12)
    assert model.lam_ == whole.lam_
    fitted = LeastSquaresClassifier(lam=model.lam_).fit(features, labels)
    np.testing.assert_allclose(fitted.coef_, whole.coef_, rtol=1e-8, atol=1e-12)


def test_a_partial_fit_goes_on_after_a_fit() -> None:
    features, labels = rows()
    model = LeastSquaresClassifier(lam=0.02).fit(features[:60], labels[:60])
    model.partial_fit(features[60:], labels[60:])
    whole = LeastSquaresClassifier(lam=0.02).fit(features, labels)
    np.testing.assert_allclose(model.coef_, whole.coef_, rtol=1e-8, atol=1e-12)


def test_probabilities_come_from_scikit_learns_calibration() -> None:
    features, labels = rows()
    model = CalibratedClassifierCV(LeastSquaresClassifier(), cv=3).fit(features, labels)
    assert model.predict_proba(features).sum(axis=1) == pytest.approx(1)
    assert not hasattr(LeastSquaresClassifier(), "predict_proba")


@pytest.mark.parametrize(
    ("settings", "call", "message"),
    [
        ({"lam": -1}, "fit", "lam is -1, expected 'auto' or a finite number >= 0"),
        ({"lam": "little"}, "fit", "lam is 'little'"),
        ({"weighting": "row"}, "fit", "weighting is 'row', expected 'sample' or 'class'"),
        ({"weighting": "class"}, "partial_fit", "partial_fit needs weighting='sample'"),
        ({}, "partial_fit", r"the first call of partial_fit needs all classes"),
    ],
)
def test_wrong_settings_are_refused(settings: dict[str, Any], call: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        getattr(LeastSquaresClassifier(**settings), call)(*rows())


def test_other_classes_than_at_first_are_refused() -> None:
    features, labels = rows()
    model = LeastSquaresClassifier().partial_fit(features, labels, classes=["ant", "bee", "cat"])
    with pytest.raises(ValueError, match="at the first call they were"):
        model.partial_fit(features, labels, classes=["ant", "bee"])
    with pytest.raises(ValueError, match=r"y holds \['dog'\], which are none of the classes"):
        model.partial_fit(features[:1], ["dog"])
    with pytest.raises(ValueError, match="there is one class, ant: a classifier needs two"):
        LeastSquaresClassifier().fit(features[:2], ["ant", "ant"])

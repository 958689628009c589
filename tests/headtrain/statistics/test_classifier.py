from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from sklearn.exceptions import NotFittedError
from sklearn.linear_model import Ridge
from sklearn.utils.estimator_checks import parametrize_with_checks

from clinit.errors import StatisticsError
from clinit.headtrain.statistics.class_statistics import ClassStatistics
from clinit.headtrain.statistics.classifier import LeastSquaresClassifier
from clinit.headtrain.statistics.lambda_curve import generalised_curve, leave_one_out_curve


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


def test_it_is_the_ridge_of_scikit_learn_with_the_bias_as_a_feature() -> None:
    features, labels = rows()
    model = LeastSquaresClassifier(lam=0.02).fit(features, labels)
    targets = (labels[:, None] == model.classes_).astype(float)
    extended = np.c_[features, np.ones(len(labels))]
    reference = Ridge(alpha=0.02 * len(labels), fit_intercept=False).fit(extended, targets)
    np.testing.assert_allclose(
        model.decision_function(features), reference.predict(extended), atol=1e-9
    )


def test_without_a_lambda_rows_choose_by_leaving_out_and_sums_on_average() -> None:
    rng, labels = np.random.default_rng(0), ["ant", "bee", "cat"]
    numbers = np.repeat([0, 1, 2], [20, 3, 3])
    features = rng.standard_normal((26, 12)) + 1.5 * np.eye(12)[numbers]
    features[0] *= 20  # one row weighs much: its own leverage is not the mean one
    named = np.array(labels)[numbers]
    statistics = ClassStatistics.of(features, numbers, weighting="sample")
    curves = leave_one_out_curve(features, numbers, statistics), generalised_curve(statistics)
    lams = [each.best for each in curves]
    assert lams[0] != lams[1]
    assert LeastSquaresClassifier().fit(features, named).lam_ == lams[0]
    assert LeastSquaresClassifier().partial_fit(features, named, labels).lam_ == lams[1]


def test_parts_that_are_too_few_for_lambda_zero_count_with_later_ones() -> None:
    features, labels = rows()
    model = LeastSquaresClassifier(lam=0)
    with pytest.raises(StatisticsError, match="singular at lam = 0"):
        model.partial_fit(features[:5], labels[:5], classes=["ant", "bee", "cat"])
    with pytest.raises(NotFittedError):
        model.predict(features)
    model.partial_fit(features[5:], labels[5:])
    whole = LeastSquaresClassifier(lam=0).fit(features, labels)
    np.testing.assert_allclose(model.coef_, whole.coef_, rtol=1e-8, atol=1e-12)


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


@pytest.mark.untyped
@pytest.mark.parametrize(
    ("settings", "call", "message"),
    [
        ({"lam": -1}, "fit", "lam is -1"),
        ({"lam": "little"}, "fit", "lam is 'little'"),
        ({"weighting": "row"}, "fit", "weighting is 'row'"),
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

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from sklearn.linear_model import Ridge
from sklearn.utils.estimator_checks import parametrize_with_checks

from clinit.headtrain.heads.statistics.class_statistics import ClassStatistics
from clinit.headtrain.heads.statistics.classifier import LeastSquaresClassifier
from clinit.headtrain.heads.statistics.lambda_curve import leave_one_out_curve


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


def test_without_a_lambda_rows_choose_by_leaving_out() -> None:
    features, named = rows()
    numbers = np.unique(named, return_inverse=True)[1]
    statistics = ClassStatistics.of(features, numbers, weighting="sample")
    curve = leave_one_out_curve(features, numbers, statistics)
    assert LeastSquaresClassifier().fit(features, named).lam_ == curve.best


@pytest.mark.untyped
@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"lam": -1}, "lam is -1"),
        ({"lam": "little"}, "lam is 'little'"),
        ({"weighting": "row"}, "weighting is 'row'"),
    ],
)
def test_wrong_settings_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        LeastSquaresClassifier(**settings).fit(*rows())


def test_one_class_is_refused() -> None:
    with pytest.raises(ValueError, match="there is one class, ant: a classifier needs two"):
        LeastSquaresClassifier().fit(rows()[0][:2], ["ant", "ant"])

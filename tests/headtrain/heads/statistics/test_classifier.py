from typing import Any

import numpy as np
import pytest
from sklearn.linear_model import Ridge
from sklearn.utils.estimator_checks import check_estimator

from clinit.headtrain.heads.statistics.class_statistics import ClassStatistics
from clinit.headtrain.heads.statistics.classifier import LeastSquaresClassifier
from clinit.headtrain.heads.statistics.solve import generalised_curve, leave_one_out_curve
from clinit.headtrain.heads.temperature import fit_temperature


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.SkipTestWarning")
@pytest.mark.parametrize("lam", ["auto", 0.05])
def test_it_passes_every_check_of_scikit_learn(lam: Any) -> None:
    found = check_estimator(LeastSquaresClassifier(lam=lam), on_fail=None)
    assert [each for each in found if each["status"] not in ("passed", "skipped")] == []


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
    without = np.empty_like(targets)  # the temperature is that of rows left out one by one
    for row, others in enumerate(~np.eye(len(labels), dtype=bool)):
        reference.fit(extended[others], targets[others])
        without[row] = reference.predict(extended[[row]])[0]
    expected = fit_temperature(without, targets.argmax(axis=1), smoothed=True)
    assert model.temperature_ == pytest.approx(expected, rel=1e-6)


def test_without_a_lambda_rows_choose_by_leaving_out() -> None:
    features, named = rows()
    numbers = np.unique(named, return_inverse=True)[1]
    statistics = ClassStatistics.of(features, numbers, weighting="sample")
    curve = leave_one_out_curve(features, numbers, statistics)
    assert LeastSquaresClassifier().fit(features, named).lam_ == curve.best


@pytest.mark.parametrize("weighting", ["sample", "class"])
@pytest.mark.parametrize("order", [(0, 1, 2), (2, 0, 1)])
def test_classes_that_come_one_by_one_in_any_order_give_the_head_of_all(
    weighting: str, order: tuple[int, ...]
) -> None:
    features, labels = rows()
    whole = LeastSquaresClassifier(lam=0.02, weighting=weighting).partial_fit(features, labels)
    parts = LeastSquaresClassifier(lam=0.02, weighting=weighting)
    for name in whole.classes_[list(order)]:
        parts.partial_fit(features[labels == name], labels[labels == name])
    np.testing.assert_allclose(parts.coef_, whole.coef_, atol=1e-10)
    np.testing.assert_allclose(parts.predict_proba(features), whole.predict_proba(features))


def test_rows_of_known_classes_add_up_unless_classes_weigh_the_same() -> None:
    features, labels = rows()
    whole = LeastSquaresClassifier(lam=0.02).fit(features, labels)
    parts = LeastSquaresClassifier(lam=0.02)
    for part in (slice(40), slice(40, 70), slice(70, 90)):
        parts.partial_fit(features[part], labels[part], classes=["ant", "bee", "cat"])
    np.testing.assert_allclose(parts.coef_, whole.coef_, atol=1e-10)
    by_class = LeastSquaresClassifier(weighting="class").fit(features, labels)
    with pytest.raises(ValueError, match="a class has rows in both sets"):
        by_class.partial_fit(features, labels)


def test_a_class_without_rows_is_never_predicted() -> None:
    features, labels = rows()
    model = LeastSquaresClassifier().partial_fit(features, labels, classes=["dog", *set(labels)])
    assert "dog" not in model.predict(features)
    assert not model.predict_proba(features)[:, 3].any()
    before = model.predict(features)
    with pytest.raises(ValueError, match="lam"):
        model.set_params(lam=-1).partial_fit(features, ["ape"] * len(labels))
    np.testing.assert_array_equal(model.predict(features), before)


@pytest.mark.parametrize("dim", [8, 70])
@pytest.mark.parametrize("way", ["fit", "partial_fit"])
def test_probabilities_are_about_as_sure_as_the_classifier_is_right(dim: int, way: str) -> None:
    random = np.random.default_rng(1)

    def drawn(count: int) -> tuple[np.ndarray, np.ndarray]:
        numbers = random.choice(3, count, p=[0.8, 0.1, 0.1])
        return random.standard_normal((count, dim)) + 1.2 * np.eye(dim)[numbers], numbers

    gaps = []
    for _ in range(5):
        model = getattr(LeastSquaresClassifier(), way)(*drawn(150))
        features, labels = drawn(1000)
        sure = model.predict_proba(features).max(axis=1)
        gaps.append(sure.mean() - model.score(features, labels))
    assert abs(np.mean(gaps)) < 0.06


def test_generalised_cross_validation_is_its_formula() -> None:
    features, named = rows()
    numbers = np.unique(named, return_inverse=True)[1]
    curve = generalised_curve(ClassStatistics.of(features, numbers, weighting="sample"))
    for lam, error in zip(curve.lams[::5], curve.errors[::5], strict=True):
        model = LeastSquaresClassifier(lam=lam).fit(features, named)
        gaps = model.decision_function(features) - np.eye(3)[numbers]
        centred = features - features.mean(0)
        inner = centred @ np.linalg.inv(centred.T @ centred + lam * 90 * np.eye(8)) @ centred.T
        freedom = 1 + np.trace(inner)
        expected = (gaps**2).sum() / 90 / 2 / (1 - freedom / 90) ** 2
        assert error == pytest.approx(expected, rel=1e-8)
    assert LeastSquaresClassifier().partial_fit(features, named).lam_ == curve.best


@pytest.mark.untyped
@pytest.mark.parametrize(("name", "value"), [("lam", -1), ("lam", "little"), ("weighting", "row")])
def test_wrong_settings_are_refused(name: str, value: Any) -> None:
    with pytest.raises(ValueError, match=f"{name} is {value!r}"):
        LeastSquaresClassifier(**{name: value}).fit(*rows())


def test_one_class_is_refused_and_labels_of_two_kinds() -> None:
    with pytest.raises(ValueError, match="there is one class, ant: a classifier needs two"):
        LeastSquaresClassifier().fit(rows()[0][:2], ["ant", "ant"])
    with pytest.raises(ValueError, match="labels are numbers"):
        LeastSquaresClassifier().fit(*rows()).partial_fit(rows()[0][:2], [1, 2])

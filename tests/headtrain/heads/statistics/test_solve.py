from fractions import Fraction
from functools import partial

import numpy as np
import pytest
from sklearn.linear_model import Ridge

from clinit.errors import StatisticsError
from clinit.headtrain.heads.linear import Rows
from clinit.headtrain.heads.repeats import find_groups
from clinit.headtrain.heads.statistics.class_statistics import (
    ClassStatistics,
    Weighting,
    row_weights,
)
from clinit.headtrain.heads.statistics.solve import (
    LambdaPath,
    least_squares_head,
    leave_one_out_curve,
    squared_error,
)

WEIGHTINGS: list[Weighting] = ["class", "sample"]
CLASSES, DIM = 6, 8


def sample(rows: int = 400, mean: float = 0.5, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Class c has about c + 1 parts of the rows."""
    rng = np.random.default_rng(seed)
    labels = rng.choice(CLASSES, size=rows, p=np.arange(1, CLASSES + 1) / 21)
    features = rng.normal(size=(rows, DIM)) @ rng.normal(size=(DIM, DIM))
    return features + rng.normal(size=(CLASSES, DIM))[labels] + mean, labels


def solve(
    features: np.ndarray, labels: np.ndarray, lam: float, weighting: Weighting = "class"
) -> Rows:
    return least_squares_head(
        ClassStatistics.of(features, labels, num_classes=CLASSES, weighting=weighting), lam
    )


@pytest.mark.parametrize("weighting", WEIGHTINGS)
def test_with_ridge_it_is_that_of_scikit_learn(weighting: Weighting) -> None:
    features, labels = sample()
    w = row_weights(np.bincount(labels), weighting)[labels]
    z = np.c_[features, np.ones(len(features))]  # the bias is penalised, too
    ridge = Ridge(alpha=0.05, fit_intercept=False, solver="cholesky")
    ridge.fit(z, np.eye(CLASSES)[labels], sample_weight=w)
    head = solve(features, labels, 0.05, weighting)
    np.testing.assert_allclose(np.c_[head.weight, head.bias], ridge.coef_, rtol=1e-8, atol=1e-12)


def relative(found: np.ndarray, expected: np.ndarray) -> float:
    return float(np.linalg.norm(found - expected) / np.linalg.norm(expected))


@pytest.mark.parametrize("use_path", [False, True])
def test_a_singular_system_is_refused_with_the_features_that_do_not_vary(use_path: bool) -> None:
    features, labels = sample()
    features[:, 3] = 2.5
    features[:, 6] = features[:, 1] + 1
    statistics = ClassStatistics.of(features, labels, num_classes=CLASSES)
    route = LambdaPath.of(statistics).head if use_path else partial(least_squares_head, statistics)
    with pytest.raises(StatisticsError, match="2 of 8 directions") as caught:
        route(0.0)
    assert "lam > 0" in caught.value.remedy
    assert np.isfinite(least_squares_head(statistics, 1e-3).weight).all()
    with pytest.raises(StatisticsError, match=" 6 rows do not vary along 3 of 8 directions"):
        solve(features[:6], labels[:6], 0.0)


def in_fractions(
    features: np.ndarray, labels: np.ndarray, lam: float, classes: int
) -> tuple[np.ndarray, np.ndarray]:
    """Eq. 3 without rounding, by Gauss and Jordan; returns weight and bias."""
    z = [[*map(Fraction, row), Fraction(1)] for row in features.tolist()]
    counts, size = np.bincount(labels).tolist(), len(z[0])
    table = [[Fraction(lam) * (i == j) for j in range(size)] for i in range(size)]
    right = [[Fraction(0)] * classes for _ in range(size)]
    for row, label in zip(z, labels.tolist(), strict=True):
        share = Fraction(1, classes * counts[label])
        for i in range(size):
            right[i][label] += share * row[i]
            table[i] = [a + share * row[i] * b for a, b in zip(table[i], row, strict=True)]
    system = [left + target for left, target in zip(table, right, strict=True)]
    for i in range(size):
        system[i] = [value / system[i][i] for value in system[i]]
        for k in set(range(size)) - {i}:
            factor = system[k][i]
            system[k] = [a - factor * b for a, b in zip(system[k], system[i], strict=True)]
    solution = np.array([[float(value) for value in row[size:]] for row in system]).T
    return solution[:, :-1], solution[:, -1]


@pytest.mark.parametrize("use_path", [False, True])
@pytest.mark.parametrize("lam", [0.0, 0.05, 0.5])
@pytest.mark.parametrize("mean", [0.0, 1e6, 1e7, 1e9])
def test_weight_and_bias_are_those_of_exact_arithmetic(
    mean: float, lam: float, use_path: bool
) -> None:
    rng, labels = np.random.default_rng(5), np.arange(60) % 4
    # Multiples of 1/8: exact in float64, also after the move.
    features = rng.integers(-50, 50, (60, 5)) / 8 + np.eye(4, 5)[labels] + mean
    statistics = ClassStatistics.of(features, labels)
    head = LambdaPath.of(statistics).head(lam) if use_path else least_squares_head(statistics, lam)
    weight, bias = in_fractions(features, labels, lam, 4)
    assert relative(head.weight, weight) < 1e-8
    assert relative(head.bias, bias) < 1e-8


def rows(seed: int = 0, count: int = 41, dim: int = 6) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 3, count)
    return rng.standard_normal((count, dim)) + 2 + labels[:, None] * 0.7, labels


def solved(features: np.ndarray, truth: np.ndarray, weights: np.ndarray, lam: float) -> np.ndarray:
    """Ave[y z^T] (Ave[z z^T] + lam I)^-1."""
    extended = np.c_[features, np.ones(len(features))]
    gram = extended.T @ (weights[:, None] * extended) + lam * np.eye(extended.shape[1])
    return np.linalg.solve(gram, extended.T @ (weights[:, None] * truth)).T


def naive_leave_one_out(
    features: np.ndarray, labels: np.ndarray, lam: float, weighting: Weighting
) -> float:
    """Solve anew without each row; in averages over classes the others of its class share 1 / C."""
    truth, counts = np.eye(3)[labels], np.bincount(labels)
    full = 1 / (3 * counts[labels] if weighting == "class" else np.full(len(labels), len(labels)))
    total = 0.0
    for left in range(len(labels)):
        weights = full.copy()
        if weighting == "class":
            weights[labels == labels[left]] *= counts[labels[left]] / (counts[labels[left]] - 1)
        weights[left] = 0.0
        gap = solved(features, truth, weights, lam) @ np.append(features[left], 1.0) - truth[left]
        total += full[left] * float(gap @ gap) / 2
    return total


@pytest.mark.parametrize("weighting", ["sample", "class"])
def test_the_curve_is_that_of_a_solve_without_each_row(weighting: Weighting) -> None:
    features, labels = rows()
    statistics = ClassStatistics.of(features, labels, weighting=weighting)
    found = leave_one_out_curve(features, labels, statistics)
    expected = [naive_leave_one_out(features, labels, lam, weighting) for lam in found.lams]
    np.testing.assert_allclose(found.errors, expected, rtol=1e-9)
    assert found.best == found.lams[int(np.argmin(expected))]
    assert found.measure == "leave-one-out error"


@pytest.mark.parametrize("weighting", ["sample", "class"])
def test_copies_are_left_out_together(weighting: Weighting) -> None:
    features, labels = (np.repeat(each, 3, axis=0) for each in rows(dim=9))
    statistics = ClassStatistics.of(features, labels, weighting=weighting)
    found = leave_one_out_curve(features, labels, statistics, groups=find_groups(features, labels))
    weights = statistics.weights[labels]
    for lam, error in zip(found.lams, found.errors, strict=True):
        total = 0.0
        for left in range(0, len(labels), 3):
            kept = weights.copy()
            kept[left : left + 3] = 0.0
            head = solved(features, np.eye(3)[labels], kept, lam)
            gap = head @ np.append(features[left], 1.0) - np.eye(3)[labels[left]]
            total += 3 * weights[left] * float(gap @ gap) / 2
        assert error == pytest.approx(total, rel=1e-9)


def test_the_error_from_statistics_is_that_of_the_rows() -> None:
    features, labels = rows(count=200)
    judge = ClassStatistics.of(features[:90], labels[:90])
    head = LambdaPath.of(ClassStatistics.of(features[90:], labels[90:])).head(0.1)
    residuals = features[:90] @ head.weight.T + head.bias - np.eye(3)[labels[:90]]
    expected = 0.5 * np.mean([3 * (residuals[labels[:90] == c] ** 2).mean() for c in range(3)])
    assert squared_error(head, judge) == pytest.approx(expected, rel=1e-12)

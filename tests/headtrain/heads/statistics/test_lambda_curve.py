import numpy as np
import pytest

from clinit.headtrain.heads.repeats import find_groups
from clinit.headtrain.heads.statistics.class_statistics import ClassStatistics, Weighting
from clinit.headtrain.heads.statistics.solve import LambdaPath, leave_one_out_curve, squared_error


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

from __future__ import annotations

import numpy as np
import pytest

from clinit.analysis.metrics.collapse import deviation
from clinit.headtrain.statistics.class_statistics import ClassStatistics, Weighting
from clinit.headtrain.statistics.solve import least_squares_head

CLASSES, DIM = 5, 7
Sample = tuple[np.ndarray, np.ndarray]


def sample(mean: float = 1.0) -> Sample:
    rng = np.random.default_rng(0)
    labels = rng.choice(CLASSES, size=300, p=np.arange(1, 6) / 15)
    return rng.normal(size=(CLASSES, DIM))[labels] + rng.normal(size=(300, DIM)) + mean, labels


def head(seed: int) -> Sample:
    rng = np.random.default_rng(seed)
    return rng.normal(size=(CLASSES, DIM)), rng.normal(size=CLASSES)


def loss(
    weight: np.ndarray, bias: np.ndarray, data: Sample, lam: float, weighting: Weighting
) -> float:
    """Eq. 1, a class and a sample at a time."""
    features, labels = data
    parts = []
    for c in range(CLASSES):
        for h in features[labels == c]:
            share = CLASSES * int((labels == c).sum()) if weighting == "class" else len(labels)
            parts.append(((weight @ h + bias - np.eye(CLASSES)[c]) ** 2).sum() / share)
    return 0.5 * float(sum(parts)) + 0.5 * lam * float((weight**2).sum() + (bias**2).sum())


@pytest.mark.parametrize("weighting", ["class", "sample"])
@pytest.mark.parametrize("lam", [0.0, 0.05])
@pytest.mark.parametrize("mean", [1.0, 100.0])
def test_the_deviation_is_the_excess_loss(weighting: Weighting, lam: float, mean: float) -> None:
    data = sample(mean)
    statistics = ClassStatistics.of(*data, weighting=weighting)
    best = least_squares_head(statistics, lam)
    least = loss(best.weight, best.bias, data, lam, weighting)
    for seed in range(3):
        weight, bias = head(seed)
        found = deviation(statistics, weight, bias, lam=lam)
        excess = loss(weight, bias, data, lam, weighting) - least
        assert found.d_ls == pytest.approx(excess, rel=1e-10)


def test_the_least_square_head_does_not_deviate() -> None:
    statistics = ClassStatistics.of(*sample())
    best = least_squares_head(statistics, 0.05)
    assert deviation(statistics, best.weight, best.bias, lam=0.05).d_ls < 1e-25


def test_the_size_is_that_of_the_extended_second_moment() -> None:
    features, labels = sample()
    weight, bias = head(0)
    z = np.c_[features, np.ones(len(features))]
    second = z.T @ z / len(z) + 0.05 * np.eye(DIM + 1)
    extended = np.c_[weight, bias]
    found = deviation(
        ClassStatistics.of(features, labels, weighting="sample"), weight, bias, lam=0.05
    )
    assert found.size == pytest.approx(0.5 * np.trace(extended @ second @ extended.T))
    assert found.relative == found.d_ls / found.size


def test_the_relative_deviation_of_a_large_head_is_one() -> None:
    weight, bias = head(0)
    statistics = ClassStatistics.of(*sample())
    found = deviation(statistics, 1e6 * weight, 1e6 * bias, lam=0.05)
    assert found.relative == pytest.approx(1, abs=1e-5)


def test_a_class_without_rows_is_left_out() -> None:
    features, labels = sample()
    weight, bias = head(0)
    wider = ClassStatistics.of(features, labels, num_classes=CLASSES + 1)
    found = deviation(wider, np.r_[weight, np.ones((1, DIM))], np.r_[bias, 1.0], lam=0.05)
    expected = deviation(ClassStatistics.of(features, labels), weight, bias, lam=0.05)
    assert found.d_ls == pytest.approx(expected.d_ls)
    assert found.size == pytest.approx(expected.size)
    assert np.isnan(found.per_class[CLASSES])

from __future__ import annotations

import numpy as np
import pytest

from clinit.errors import StatisticsError
from clinit.headtrain.statistics.class_statistics import ClassStatistics
from clinit.headtrain.statistics.lambda_curve import held_out, held_out_error, lambda_curve
from clinit.headtrain.statistics.solve import LambdaPath


def sample(
    rows: int, dim: int, classes: int = 4, noise: float = 1.0
) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    labels = rng.choice(
        classes, size=rows, p=np.arange(1, classes + 1) / (classes * (classes + 1) / 2)
    )
    centres = np.random.default_rng(1).normal(size=(classes, dim))
    return centres[labels] + noise * rng.normal(size=(rows, dim)), labels


@pytest.mark.parametrize("classes", [slice(None), slice(2, 4)])
def test_the_error_from_statistics_is_that_of_the_rows(classes: slice) -> None:
    features, labels = sample(200, 6)
    held = held_out(labels, 0)
    head = LambdaPath.of(ClassStatistics.of(features[~held], labels[~held])).head(0.1, classes)
    judge = ClassStatistics.of(features[held], labels[held])
    residual = features[held] @ head.weight.T + head.bias - np.eye(4)[labels[held]][:, classes]
    squares = (residual**2).sum(axis=1)
    expected = 0.5 * np.mean([squares[labels[held] == c].mean() for c in range(4)])
    assert held_out_error(head, judge, classes) == pytest.approx(expected, rel=1e-12)


def test_a_fifth_of_each_class_is_held_out_and_the_only_row_of_a_class_is_not() -> None:
    labels = np.repeat([0, 1, 3, 4], [100, 2, 1, 14])
    np.testing.assert_array_equal(np.bincount(labels[held_out(labels, 5)]), [20, 1, 0, 0, 2])
    np.testing.assert_array_equal(held_out(labels, 5), held_out(labels, 5))


def test_classes_of_one_row_cannot_choose() -> None:
    with pytest.raises(StatisticsError, match="no class that is judged has two rows") as caught:
        lambda_curve(np.eye(3), np.arange(3), 3)
    assert "0.05" in caught.value.remedy

from __future__ import annotations

import numpy as np
import pytest

from clinit.errors import StatisticsError
from clinit.headtrain.statistics.class_statistics import ClassStatistics, Weighting

WEIGHTINGS: list[Weighting] = ["class", "sample"]
CLASSES, DIM = 7, 5


def sample(
    rows: int = 300, mean: float = 0.0, dtype: type = np.float64, seed: int = 0
) -> tuple[np.ndarray, np.ndarray]:
    """Features with class structure, very unequal counts, class 3 without a row."""
    rng = np.random.default_rng(seed)
    share = np.array([0.4, 0.3, 0.1, 0.0, 0.1, 0.05, 0.05])
    labels = rng.choice(CLASSES, size=rows, p=share)
    features = rng.normal(size=(rows, DIM)) @ rng.normal(size=(DIM, DIM))
    features += rng.normal(size=(CLASSES, DIM))[labels] + mean
    return features.astype(dtype), labels


def weights_of(labels: np.ndarray, weighting: Weighting) -> list[float]:
    """One weight a row, from the definition of Ave."""
    present = sorted(set(labels.tolist()))
    if weighting == "sample":
        return [1 / len(labels)] * len(labels)
    return [1 / (len(present) * int((labels == label).sum())) for label in labels]


@pytest.mark.parametrize("weighting", WEIGHTINGS)
@pytest.mark.parametrize("mean", [0.0, 30.0])
def test_moments_are_their_definitions(weighting: Weighting, mean: float) -> None:
    features, labels = sample(mean=mean)
    statistics = ClassStatistics.of(features, labels, num_classes=CLASSES, weighting=weighting)
    w = weights_of(labels, weighting)
    mu = sum(wi * h for wi, h in zip(w, features, strict=True))
    total = sum(wi * np.outer(h - mu, h - mu) for wi, h in zip(w, features, strict=True))
    means = {c: features[labels == c].mean(axis=0) for c in set(labels.tolist())}
    within = sum(
        wi * np.outer(h - means[y], h - means[y])
        for wi, h, y in zip(w, features, labels.tolist(), strict=True)
    )
    np.testing.assert_allclose(statistics.mean, mu, rtol=1e-12)
    np.testing.assert_allclose(statistics.total_covariance, total, rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(statistics.within_covariance, within, rtol=1e-10, atol=1e-12)
    for c in range(CLASSES):
        expected = means.get(c, np.zeros(DIM))
        np.testing.assert_allclose(statistics.class_means[c], expected, rtol=1e-12)
        centred = means[c] - mu if c in means else np.zeros(DIM)
        np.testing.assert_allclose(statistics.centred_class_means[c], centred, atol=1e-12)


@pytest.mark.parametrize("weighting", WEIGHTINGS)
@pytest.mark.parametrize("cut", [1, 20, 299])
def test_merged_parts_are_the_whole(weighting: Weighting, cut: int) -> None:
    features, labels = sample(mean=100.0)
    whole = ClassStatistics.of(features, labels, num_classes=CLASSES, weighting=weighting)
    parts = [
        ClassStatistics.of(features[rows], labels[rows], totals=whole.totals, weighting=weighting)
        for rows in (slice(cut), slice(cut, None))
    ]
    assert not np.allclose(parts[0].shift, parts[1].shift)
    merged = parts[1] + parts[0]
    np.testing.assert_array_equal(merged.counts, whole.counts)
    scale = np.abs(whole.total_covariance).max()
    np.testing.assert_allclose(
        merged.total_covariance, whole.total_covariance, atol=1e-12 * scale, rtol=0
    )
    np.testing.assert_allclose(merged.class_means, whole.class_means, rtol=1e-12)


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_the_covariance_survives_a_mean_far_larger_than_the_spread(dtype: type) -> None:
    rng = np.random.default_rng(1)
    # Values that the narrow type holds exactly: only the arithmetic is under test.
    spread = rng.integers(-2, 3, size=(400, DIM))
    features: np.ndarray = (spread + 1000).astype(dtype)
    labels = rng.integers(0, 3, size=400)
    covariance = ClassStatistics.of(features, labels, weighting="sample").total_covariance
    np.testing.assert_allclose(covariance, np.cov(spread.T, bias=True), rtol=1e-12, atol=1e-12)
    narrow = features.astype(np.float32)
    naive = narrow.T @ narrow / 400 - np.outer(narrow.mean(0), narrow.mean(0))
    assert np.abs(naive - np.cov(spread.T, bias=True)).max() > 1e-2


def test_any_shift_gives_the_same_moments() -> None:
    features, labels = sample(mean=3.0)
    near = ClassStatistics.of(features, labels, num_classes=CLASSES)
    far = near.with_shift(np.full(DIM, -50.0))
    np.testing.assert_allclose(far.total_covariance, near.total_covariance, atol=1e-10)
    np.testing.assert_allclose(far.class_means, near.class_means, atol=1e-12)


def test_different_weights_are_not_merged() -> None:
    features, labels = sample()
    whole = ClassStatistics.of(features, labels, num_classes=CLASSES)
    part = ClassStatistics.of(features[:90], labels[:90], num_classes=CLASSES)
    message = "class weights of 300 rows and class weights of 90 rows"
    with pytest.raises(StatisticsError, match=message) as caught:
        whole + part
    assert "totals" in caught.value.remedy
    by_sample = ClassStatistics.of(features, labels, num_classes=CLASSES, weighting="sample")
    with pytest.raises(StatisticsError, match=r"class weights .* and sample weights"):
        whole + by_sample


def test_a_part_merged_twice_is_refused() -> None:
    features, labels = sample()
    whole = ClassStatistics.of(features, labels, num_classes=CLASSES)
    with pytest.raises(StatisticsError, match=r"class 0 has \d+ rows, expected \d+"):
        whole + whole


def test_a_part_is_not_used_as_the_whole() -> None:
    features, labels = sample()
    totals = np.bincount(labels, minlength=CLASSES)
    part = ClassStatistics.of(features[:100], labels[:100], totals=totals)
    with pytest.raises(StatisticsError, match="hold 100 of 300 rows"):
        _ = part.mean


def test_features_that_are_not_finite_are_refused() -> None:
    features, labels = sample()
    features[17, 2] = np.nan
    with pytest.raises(StatisticsError, match="not finite"):
        ClassStatistics.of(features, labels, num_classes=CLASSES)


def test_labels_outside_the_classes_are_refused() -> None:
    features, labels = sample()
    with pytest.raises(ValueError, match=r"label 6 is outside \[0, 5\)"):
        ClassStatistics.of(features, labels, num_classes=5)
    with pytest.raises(ValueError, match=r"labels must lie in \[0, 5\)"):
        ClassStatistics.of_blocks([(features, labels)], np.full(5, 300))

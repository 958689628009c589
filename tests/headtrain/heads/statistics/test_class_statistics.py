from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from clinit.errors import StatisticsError
from clinit.headtrain.heads.array import StreamedRows
from clinit.headtrain.heads.statistics.class_statistics import ClassStatistics, Weighting
from clinit.headtrain.heads.statistics.moments import MomentSums
from clinit.headtrain.protocol.stream.buffer import TaskRows
from clinit.headtrain.protocol.train.past import RunningStatistics

WEIGHTINGS: list[Weighting] = ["class", "sample"]
CLASSES, DIM = 7, 5


def sample(rows: int = 300, mean: float = 0.0) -> tuple[np.ndarray, np.ndarray]:
    """Features with class structure, very unequal counts, class 3 without a row."""
    rng = np.random.default_rng(0)
    labels = rng.choice(CLASSES, size=rows, p=np.array([0.4, 0.3, 0.1, 0.0, 0.1, 0.05, 0.05]))
    features = rng.normal(size=(rows, DIM)) @ rng.normal(size=(DIM, DIM))
    return features + rng.normal(size=(CLASSES, DIM))[labels] + mean, labels


def assert_same(found: ClassStatistics, expected: ClassStatistics) -> None:
    np.testing.assert_array_equal(found.totals, expected.totals)
    np.testing.assert_allclose(found.counts, expected.counts, rtol=1e-12)  # sums of shares
    scale = np.abs(expected.total_covariance).max()
    for name in ("mean", "class_means", "total_covariance", "within_covariance"):
        one, other = getattr(found, name), getattr(expected, name)
        np.testing.assert_allclose(one, other, rtol=1e-11, atol=1e-12 * scale)


@pytest.mark.parametrize("weighting", WEIGHTINGS)
@pytest.mark.parametrize("mean", [0.0, 30.0])
def test_moments_are_their_definitions(weighting: Weighting, mean: float) -> None:
    features, labels = sample(mean=mean)
    statistics = ClassStatistics.of(features, labels, num_classes=CLASSES, weighting=weighting)
    counts = np.bincount(labels, minlength=CLASSES)
    w = [1 / 300 if weighting == "sample" else 1 / (6 * counts[label]) for label in labels]
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
    halves, given = (slice(cut), slice(cut, None)), {"weighting": weighting}
    parts = [
        ClassStatistics.of(features[rows], labels[rows], totals=whole.totals, **given)  # type: ignore[arg-type]
        for rows in halves
    ]
    assert not np.allclose(parts[0].shift, parts[1].shift)
    assert_same(parts[1] + parts[0], whole)


@pytest.mark.parametrize("weighting", WEIGHTINGS)
def test_rows_that_repeat_each_other_count_as_one(weighting: Weighting) -> None:
    features, labels = sample()
    rows = np.repeat(np.arange(300), 1 + np.arange(300) % 3)
    given: Any = {"num_classes": CLASSES, "weighting": weighting}
    found = ClassStatistics.of(features[rows], labels[rows], groups=rows, **given)
    assert_same(found, ClassStatistics.of(features, labels, **given))


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_the_covariance_survives_a_mean_far_larger_than_the_spread(dtype: type) -> None:
    rng = np.random.default_rng(1)
    # Values that the narrow type holds exactly: only the arithmetic is under test.
    spread = rng.integers(-2, 3, size=(400, DIM))
    features: np.ndarray = (spread + 1000).astype(dtype)
    labels = rng.integers(0, 3, size=400)
    covariance = ClassStatistics.of(features, labels, weighting="sample").total_covariance
    np.testing.assert_allclose(covariance, np.cov(spread.T, bias=True), rtol=1e-12, atol=1e-12)


def test_what_is_not_finite_and_labels_outside_the_classes_are_refused() -> None:
    features, labels = sample()
    with pytest.raises(ValueError, match=r"label 6 is outside \[0, 5\)"):
        ClassStatistics.of(features, labels, num_classes=5)
    features[17, 2] = np.nan
    with pytest.raises(StatisticsError, match="not finite"):
        ClassStatistics.of(features, labels, num_classes=CLASSES)


BASE, NEW, TASKS = 4, 2, 3
RANDOM = np.random.default_rng(0)
LABELS = RANDOM.permutation(np.repeat(np.arange(10), RANDOM.integers(5, 30, 10)))
FEATURES = RANDOM.normal(size=(len(LABELS), DIM)) + LABELS[:, None] + 5.0


def rows_of(classes: Sequence[int]) -> np.ndarray:
    return np.flatnonzero(np.isin(LABELS, classes))


def task(number: int, old: np.ndarray) -> TaskRows:
    first = stop(number) - NEW
    rows = np.concatenate([old, rows_of(range(first, first + NEW))])
    return TaskRows(number, rows, LABELS[rows], int((LABELS[old] < BASE).sum()), len(old))


def stop(number: int) -> int:
    return BASE + NEW * number


@pytest.fixture
def summed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Rows of each call that summed some."""
    counts: list[int] = []
    add = MomentSums.add

    def counted(self: Any, features: Any, labels: Any) -> None:
        counts.append(len(labels))
        add(self, features, labels)

    monkeypatch.setattr(MomentSums, "add", counted)
    return counts


@pytest.mark.parametrize("weighting", WEIGHTINGS)
@pytest.mark.parametrize("streamed", [False, True])
def test_rows_that_stay_are_summed_once(
    weighting: Weighting, streamed: bool, summed: list[int]
) -> None:
    running = RunningStatistics()
    for number in range(1, TASKS + 1):
        random = np.random.default_rng(number)
        rows = task(number, random.permutation(rows_of(range(stop(number - 1)))))
        features: Any = FEATURES[rows.rows]
        summed.clear()
        given = StreamedRows(features, np.asarray) if streamed else features
        found = running.of(rows, given, stop(number), weighting)
        assert sum(summed) == (len(rows.rows) if number == 1 else rows.num_new)
        assert running.of(rows, given, stop(number), weighting) is found
        classes = {"num_classes": stop(number), "weighting": weighting}
        assert_same(found, ClassStatistics.of(features, rows.labels, **classes))  # type: ignore[arg-type]


@pytest.mark.parametrize("change", ["a row less", "another row", "a row twice"])
def test_rows_that_differ_are_summed_anew(change: str, summed: list[int]) -> None:
    running, first = RunningStatistics(), task(1, rows_of(range(BASE))[:-1])
    running.of(first, FEATURES[first.rows], stop(1), "class")
    kept = first.rows.copy()
    if change == "a row less":
        kept = kept[1:]
    else:
        kept[0] = rows_of(range(BASE))[-1] if change == "another row" else kept[1]
    second = task(2, kept)
    summed.clear()
    found = running.of(second, FEATURES[second.rows], stop(2), "class")
    assert sum(summed) == len(second.rows)
    features = FEATURES[second.rows]
    assert_same(found, ClassStatistics.of(features, second.labels, num_classes=stop(2)))

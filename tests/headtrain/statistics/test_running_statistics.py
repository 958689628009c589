from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from clinit.headtrain.array import StreamedRows
from clinit.headtrain.statistics.class_statistics import (
    ClassStatistics,
    RunningStatistics,
    Weighting,
)
from clinit.headtrain.statistics.moments import MomentSums
from clinit.headtrain.stream.buffer import TaskRows

DIM, BASE, NEW, TASKS = 6, 4, 2, 3
CLASSES = BASE + NEW * TASKS
RANDOM = np.random.default_rng(0)
LABELS = RANDOM.permutation(np.repeat(np.arange(CLASSES), RANDOM.integers(5, 30, CLASSES)))
FEATURES = RANDOM.normal(size=(len(LABELS), DIM)) + LABELS[:, None] + 5.0


def rows_of(classes: Sequence[int]) -> np.ndarray:
    return np.flatnonzero(np.isin(LABELS, classes))


def task(number: int, old: np.ndarray) -> TaskRows:
    first = BASE + NEW * (number - 1)
    rows = np.concatenate([old, rows_of(range(first, first + NEW))])
    num_base = int((LABELS[old] < BASE).sum())
    return TaskRows(number, rows, LABELS[rows], num_base, len(old))


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


def assert_same(found: ClassStatistics, expected: ClassStatistics) -> None:
    np.testing.assert_array_equal(found.totals, expected.totals)
    np.testing.assert_array_equal(found.counts, expected.counts)
    for name in ("mean", "class_means", "total_covariance", "within_covariance"):
        np.testing.assert_allclose(
            getattr(found, name), getattr(expected, name), rtol=1e-11, atol=1e-12
        )


@pytest.mark.parametrize("weighting", ["class", "sample"])
@pytest.mark.parametrize("streamed", [False, True])
def test_rows_that_stay_are_summed_once(
    weighting: Weighting, streamed: bool, summed: list[int]
) -> None:
    running = RunningStatistics()
    for number in range(1, TASKS + 1):
        rows = task(number, RANDOM.permutation(rows_of(range(stop(number - 1)))))
        features: Any = FEATURES[rows.rows]
        summed.clear()
        given = StreamedRows(features, np.asarray) if streamed else features
        found = running.of(rows, given, stop(number), weighting)
        assert sum(summed) == (len(rows.rows) if number == 1 else rows.num_new)
        expected = ClassStatistics.of(
            features, rows.labels, num_classes=stop(number), weighting=weighting
        )
        assert_same(found, expected)


def test_the_same_rows_are_not_summed_again(summed: list[int]) -> None:
    rows = task(1, rows_of(range(BASE)))
    running = RunningStatistics()
    first = running.of(rows, FEATURES[rows.rows], stop(1), "class")
    summed.clear()
    assert running.of(rows, FEATURES[rows.rows], stop(1), "class") is first
    assert not summed


@pytest.mark.parametrize("change", ["a row less", "another row", "a row twice"])
def test_rows_that_differ_are_summed_anew(change: str, summed: list[int]) -> None:
    running = RunningStatistics()
    first = task(1, rows_of(range(BASE))[:-1])
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
    expected = ClassStatistics.of(
        FEATURES[second.rows], second.labels, num_classes=stop(2), weighting="class"
    )
    assert_same(found, expected)


def test_more_rows_of_a_class_are_another_set() -> None:
    statistics = ClassStatistics.of(FEATURES, LABELS)
    more = statistics.totals.copy()
    more[2] += 1
    for totals in (more, statistics.totals[:-1]):
        with pytest.raises(ValueError, match="a class has another number of rows"):
            statistics.within(totals)


def test_no_rows_are_a_part_of_any_set() -> None:
    none = ClassStatistics.of(np.zeros((0, DIM)), np.zeros(0, dtype=np.int64), num_classes=2)
    totals = np.array([0, 0, 3])
    rest = ClassStatistics.of(FEATURES[:3], np.full(3, 2), totals=totals)
    assert_same(none.within(totals) + rest, ClassStatistics.of(FEATURES[:3], np.full(3, 2)))

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from clinit.headtrain.stream import buffer as pool_module
from clinit.headtrain.stream.buffer import Pool, TaskRows

labels_of_a_part = st.lists(st.integers(-1, 4), max_size=12)


def pool_of(*parts: list[int]) -> Pool:
    """A pool whose row r has the feature r."""
    start, made = 0, []
    for labels in parts:
        features = np.arange(start, start + len(labels), dtype=np.float32)[:, None]
        made.append((features, np.array(labels, dtype=np.int64)))
        start += len(labels)
    return Pool(*made)


@given(
    parts=st.lists(labels_of_a_part, min_size=1, max_size=3),
    cut=st.tuples(*[st.integers(0, 5)] * 2),
)
def test_rows_come_class_after_class_and_in_stored_order_within(
    parts: list[list[int]], cut: tuple[int, int]
) -> None:
    pool, labels = pool_of(*parts), [label for part in parts for label in part]
    start, stop = min(cut), max(cut)
    expected = [row for c in range(start, stop) for row, label in enumerate(labels) if label == c]
    assert pool.rows_between(start, stop).tolist() == expected
    assert pool.labels.tolist() == labels
    assert pool.rows_of(start).tolist() == [r for r, label in enumerate(labels) if label == start]
    assert pool.counts(5).tolist() == [labels.count(c) for c in range(5)]


@given(parts=st.lists(labels_of_a_part, min_size=1, max_size=3), seed=st.integers(0, 3))
def test_features_are_taken_from_all_parts_in_the_order_asked_for(
    parts: list[list[int]], seed: int
) -> None:
    total = sum(map(len, parts))
    rows = np.random.default_rng(seed).integers(total, size=2 * total) if total else np.arange(0)
    taken = pool_of(*parts).take(rows)
    assert taken.shape == (len(rows), 1)
    np.testing.assert_array_equal(taken[:, 0], rows)


def test_features_keep_their_type_and_are_copied() -> None:
    stored = np.zeros((3, 2), np.float16)
    taken = Pool((stored, np.arange(3))).take(np.arange(3))
    assert taken.dtype == np.float16
    taken += 1
    assert not stored.any()


def test_parts_of_two_types_give_the_wider_one() -> None:
    low, high = np.zeros((1, 2), np.float16), np.full((1, 2), 1e6, np.float32)
    pool = Pool((low, np.array([0])), (high, np.array([1])))
    assert pool.take(np.array([1, 0])).tolist() == [[1e6, 1e6], [0, 0]]


def test_a_row_of_no_class_is_in_no_class() -> None:
    pool = pool_of([-1, 0], [-1, 1])
    assert pool.rows_between(0, 2).tolist() == [1, 3]
    assert pool.counts(3).tolist() == [1, 1, 0]


def task_rows(num_old: int, num_new: int, number: int = 2) -> TaskRows:
    total = num_old + num_new
    return TaskRows(number, np.arange(total), np.zeros(total, np.int64), num_old, num_old)


def test_the_loss_is_measured_on_new_rows_alone_each_once() -> None:
    rows = task_rows(7, 20)
    assert rows.num_new == 20
    assert rows.loss_sample(0).tolist() == list(range(7, 27))


def test_a_large_task_is_sampled_by_seed_and_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool_module, "LOSS_SAMPLE_ROWS", 50)
    sample = task_rows(7, 500).loss_sample(3)
    assert len(set(sample.tolist())) == 50
    assert sample.tolist() == sorted(sample.tolist())
    assert 7 <= sample.min() < sample.max() < 507
    assert sample.tolist() == task_rows(7, 500).loss_sample(3).tolist()
    assert sample.tolist() != task_rows(7, 500).loss_sample(4).tolist()
    assert sample.tolist() != task_rows(7, 500, number=3).loss_sample(3).tolist()

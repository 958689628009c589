"""The table of all rows, the buffer, and the rows that are held out for bias correction."""

import numpy as np
import pytest
from hypothesis import given, strategies as st

from clinit.headtrain.protocol.stream import buffer as buffer_module
from clinit.headtrain.protocol.stream.buffer import Buffer, Pool, TaskRows, level

counts_of_classes = st.lists(st.integers(0, 12), min_size=1, max_size=12)


def pool_of(*parts: list[int]) -> Pool:
    """A pool whose row r has the feature r."""
    start, made = 0, []
    for labels in parts:
        features = np.arange(start, start + len(labels), dtype=np.float32)[:, None]
        made.append((features, np.array(labels, dtype=np.int64)))
        start += len(labels)
    return Pool(*made)


@given(
    parts=st.lists(st.lists(st.integers(-1, 4), max_size=12), min_size=1, max_size=3),
    cut=st.tuples(*[st.integers(0, 5)] * 2),
    seed=st.integers(0, 3),
)
def test_rows_come_class_after_class_with_the_features_of_their_part(
    parts: list[list[int]], cut: tuple[int, int], seed: int
) -> None:
    pool, labels = pool_of(*parts), [label for part in parts for label in part]
    start, stop = min(cut), max(cut)
    expected = [row for c in range(start, stop) for row, label in enumerate(labels) if label == c]
    assert pool.rows_between(start, stop).tolist() == expected
    assert pool.counts(5).tolist() == [labels.count(c) for c in range(5)]
    total = len(labels)
    rows = np.random.default_rng(seed).integers(total, size=2 * total) if total else np.arange(0)
    np.testing.assert_array_equal(pool.take(rows)[:, 0], rows)


def test_features_are_copied_in_the_wider_type_of_their_parts() -> None:
    low, high = np.zeros((1, 2), np.float16), np.full((1, 2), 1e6, np.float32)
    taken = Pool((low, np.array([0])), (high, np.array([1]))).take(np.array([1, 0]))
    assert taken.tolist() == [[1e6, 1e6], [0, 0]]


def task_rows(num_old: int, num_new: int, number: int = 2) -> TaskRows:
    total = num_old + num_new
    return TaskRows(number, np.arange(total), np.zeros(total, np.int64), num_old, num_old)


def test_the_loss_is_measured_on_new_rows_by_seed_and_task(monkeypatch: pytest.MonkeyPatch) -> None:
    assert task_rows(7, 20).loss_sample(0).tolist() == list(range(7, 27))
    monkeypatch.setattr(buffer_module, "LOSS_SAMPLE_ROWS", 50)
    samples = [task_rows(7, 500, n).loss_sample(s).tolist() for n, s in ((2, 3), (2, 4), (3, 3))]
    assert len(set(map(tuple, samples))) == 3
    assert samples[0] == task_rows(7, 500).loss_sample(3).tolist() == sorted(set(samples[0]))
    assert len(samples[0]) == 50
    assert samples[0][0] >= 7


def naive_quotas(counts: list[int], size: int, ranks: np.ndarray) -> list[int]:
    """Hand out one row at a time: a round gives a row to every class that has one left."""
    shares = [0] * len(counts)
    while True:
        wanting = [c for c in np.argsort(ranks) if shares[c] < counts[c]]
        if not wanting or sum(shares) == size:
            return shares
        for c in wanting:
            if sum(shares) < size:
                shares[c] += 1


@given(counts=counts_of_classes, size=st.integers(0, 100), seed=st.integers(0, 3))
def test_quotas_are_those_of_handing_out_one_row_at_a_time(
    counts: list[int], size: int, seed: int
) -> None:
    ranks = np.random.default_rng(seed).permutation(len(counts)).astype(float)
    assert level(np.array(counts), size, ranks).tolist() == naive_quotas(counts, size, ranks)


@given(
    counts=counts_of_classes,
    size=st.integers(0, 60),
    cuts=st.lists(st.integers(1, 12), max_size=4),
    seed=st.integers(0, 3),
)
def test_a_later_buffer_holds_only_rows_that_were_stored_or_have_just_been_seen(
    counts: list[int], size: int, cuts: list[int], seed: int
) -> None:
    labels = np.random.default_rng(0).permutation(np.repeat(np.arange(len(counts)), counts))
    pool = pool_of(*(part.tolist() for part in np.array_split(labels, 2)))
    buffer = Buffer(pool, size, seed=seed)
    stages = sorted({min(cut, len(counts)) for cut in cuts} | {len(counts)})
    stored: set[int] = set()
    before = 0
    for seen in stages:
        just_seen = set(pool.rows_between(before, seen).tolist())
        chosen = buffer.rows(seen).tolist()
        assert len(chosen) == len(set(chosen))
        assert len(chosen) == min(size, sum(counts[:seen]))
        assert set(chosen) <= stored | just_seen
        stored, before = set(chosen), seen

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from clinit.headtrain.stream.buffer import Balanced, Buffer, PerClass, Pool, Quotas, Sgm, level

counts_of_classes = st.lists(st.integers(0, 12), min_size=1, max_size=12)


def pool_of(counts: list[int]) -> Pool:
    labels = np.repeat(np.arange(len(counts)), counts)
    labels = np.random.default_rng(0).permutation(labels)
    half = len(labels) // 2
    features = np.arange(len(labels), dtype=np.float32)[:, None]
    return Pool((features[:half], labels[:half]), (features[half:], labels[half:]))


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
    shares = level(np.array(counts), size, ranks)
    assert shares.tolist() == naive_quotas(counts, size, ranks)
    assert shares.sum() == min(size, sum(counts))


@given(
    counts=counts_of_classes,
    size=st.integers(0, 60),
    kind=st.sampled_from(["balanced", "sgm", "per class"]),
    cuts=st.lists(st.integers(1, 12), max_size=4),
    seed=st.integers(0, 3),
)
def test_a_later_buffer_holds_only_rows_that_were_stored_or_have_just_been_seen(
    counts: list[int], size: int, kind: str, cuts: list[int], seed: int
) -> None:
    pool = pool_of(counts)
    quotas: dict[str, Quotas] = {
        "balanced": Balanced(size),
        "sgm": Sgm(size, num_base=3),
        "per class": PerClass(size),
    }
    buffer = Buffer(pool, quotas[kind], seed=seed)
    stages = sorted({min(cut, len(counts)) for cut in cuts} | {len(counts)})
    stored: set[int] = set()
    before = 0
    for seen in stages:
        just_seen = set(pool.rows_between(before, seen).tolist())
        chosen = buffer.rows(seen).tolist()
        assert len(chosen) == len(set(chosen))
        if kind != "per class":
            assert len(chosen) <= size
        if kind == "balanced":
            assert len(chosen) == min(size, sum(counts[:seen]))
        assert set(chosen) <= stored | just_seen
        stored, before = set(chosen), seen


def test_each_class_gives_as_many_rows_as_any_other_that_has_them() -> None:
    pool = pool_of([10, 2, 10, 10])
    chosen = Buffer(pool, Balanced(20), seed=0).rows(4)
    assert np.bincount(pool.labels[chosen]).tolist() == [6, 2, 6, 6]


def test_a_buffer_larger_than_the_data_takes_all_of_it() -> None:
    pool = pool_of([3, 4])
    chosen = Buffer(pool, Balanced(100), seed=0).rows(2)
    assert sorted(chosen) == list(range(7))


def test_the_choice_depends_on_the_seed() -> None:
    pool = pool_of([50, 50])
    one, same, other = (Buffer(pool, Balanced(10), seed=s).rows(2) for s in (0, 0, 1))
    assert one.tolist() == same.tolist()
    assert one.tolist() != other.tolist()


@pytest.mark.parametrize(
    ("size", "later"), [(24_000, 5_400), (192_000, 38_400), (1_000, 225), (400_000, 80_000)]
)
def test_the_sgm_split_keeps_the_published_part_for_later_classes(size: int, later: int) -> None:
    assert Sgm(size, num_base=10).later_size == later


def test_the_parts_of_the_sgm_split_do_not_lend_to_each_other() -> None:
    pool = pool_of([100] * 6)
    buffer = Buffer(pool, Sgm(40, num_base=2), seed=0)
    kept = [np.bincount(pool.labels[buffer.rows(seen)], minlength=6).tolist() for seen in (2, 3, 6)]
    assert sorted(kept[0][:2]) == [15, 16]
    assert kept[1][2:] == [9, 0, 0, 0]
    assert kept[2][:2] == kept[0][:2]
    assert sorted(kept[2][2:]) == [2, 2, 2, 3]


def test_a_buffer_by_class_grows_with_the_classes() -> None:
    pool = pool_of([5, 2, 9])
    buffer = Buffer(pool, PerClass(4), seed=0)
    assert [len(buffer.rows(seen)) for seen in (0, 1, 2, 3)] == [0, 4, 6, 10]

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from clinit.headtrain.stream.buffer import TaskRows
from clinit.headtrain.stream.task_plan import Schedule, Share, draw_schedule, mixed

counts = st.integers(0, 15)
sizes = st.integers(1, 20)


def draw(*shares: Share, first_new: int, iterations: int = 3) -> Schedule:
    return draw_schedule(
        np.random.default_rng(0), shares, first_new=first_new, iterations=iterations
    )


@given(
    ranges=st.lists(st.tuples(sizes, counts), min_size=1, max_size=3),
    iterations=st.integers(0, 12),
)
def test_a_row_comes_again_only_after_all_others_of_its_range(
    ranges: list[tuple[int, int]], iterations: int
) -> None:
    starts = np.cumsum([0, *(size for size, _ in ranges)])
    shares = [
        Share(int(start), int(start) + size, count)
        for start, (size, count) in zip(starts, ranges, strict=False)
    ]
    first_new = shares[-1].start
    schedule = draw(*shares, first_new=first_new, iterations=iterations)
    assert schedule.batches.shape == (iterations, sum(count for _, count in ranges))
    assert schedule.num_new.tolist() == [shares[-1].count] * iterations
    flat = schedule.batches.ravel()
    for share in shares:
        drawn = flat[(flat >= share.start) & (flat < share.stop)]
        assert len(drawn) == iterations * share.count
        counted = np.bincount(drawn - share.start, minlength=share.stop - share.start)
        assert counted.max() - counted.min() <= 1


def test_new_rows_come_first_in_a_batch_of_one_range() -> None:
    schedule = draw(Share(0, 30, 10), first_new=20, iterations=6)
    for batch, new in zip(schedule.batches, schedule.num_new, strict=True):
        assert (batch[:new] >= 20).all()
        assert (batch[new:] < 20).all()
    assert schedule.num_new[:3].sum() == schedule.num_new[3:].sum() == 10


def test_passes_are_shuffled_differently() -> None:
    schedule = draw(Share(0, 50, 50), first_new=0, iterations=2)
    assert sorted(schedule.batches[0]) == sorted(schedule.batches[1])
    assert schedule.batches[0].tolist() != schedule.batches[1].tolist()


def test_the_share_of_new_rows_is_counted_in_each_batch() -> None:
    schedule = draw(Share(0, 30, 10), first_new=20, iterations=6)
    expected = [sum(row >= 20 for row in batch) / 10 for batch in schedule.batches]
    assert schedule.new_share.tolist() == expected
    assert len(set(expected)) > 1
    assert draw(Share(0, 30, 10), first_new=20, iterations=0).new_share.shape == (0,)


def rows_of(base: int, earlier: int, new: int) -> TaskRows:
    total = base + earlier + new
    return TaskRows(2, np.arange(total), np.zeros(total, np.int64), base, base + earlier)


def counted(mix: str, data: TaskRows, batch_size: int = 256) -> list[int]:
    return [share.count for share in mixed(mix, data, batch_size)]


def test_the_first_task_is_half_new_in_both_mixes() -> None:
    assert counted("text", rows_of(50, 0, 9)) == counted("sgm", rows_of(50, 0, 9)) == [128, 128]


def test_later_batches_of_sgm_are_96_new_128_base_32_earlier() -> None:
    shares = mixed("sgm", rows_of(50, 7, 9), 256)
    assert [(share.start, share.stop, share.count) for share in shares] == [
        (57, 66, 96),
        (0, 50, 128),
        (50, 57, 32),
    ]


@pytest.mark.parametrize("mix", ["text", "sgm"])
@given(base=st.integers(0, 3), earlier=st.integers(0, 3), batch_size=st.integers(2, 40))
def test_the_shares_fill_the_batch_and_ask_for_nothing_that_is_not_there(
    mix: str, base: int, earlier: int, batch_size: int
) -> None:
    shares = mixed(mix, rows_of(base, earlier, 2), batch_size)
    assert sum(share.count for share in shares) == batch_size
    assert all(share.stop > share.start for share in shares if share.count)

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from clinit.headtrain.schedule import draw_schedule


@given(
    old_rows=st.integers(0, 20),
    new_rows=st.integers(1, 20),
    iterations=st.integers(0, 12),
    batch_size=st.integers(2, 31),
)
def test_a_row_comes_again_only_after_all_others_of_its_source(
    old_rows: int, new_rows: int, iterations: int, batch_size: int
) -> None:
    schedule = draw_schedule(
        np.random.default_rng(0),
        old_rows=old_rows,
        new_rows=new_rows,
        iterations=iterations,
        batch_size=batch_size,
    )
    assert schedule.batches.shape == (iterations, batch_size)
    new = schedule.batches[:, : schedule.num_new].ravel()
    old = schedule.batches[:, schedule.num_new :].ravel()
    for drawn, rows in ((new - old_rows, new_rows), (old, old_rows)):
        assert ((drawn >= 0) & (drawn < rows)).all()
        for start in range(0, len(drawn), max(rows, 1)):
            one_pass = drawn[start : start + rows]
            assert len(set(one_pass)) == len(one_pass)


@pytest.mark.parametrize(("batch_size", "num_new"), [(2, 1), (5, 2), (256, 128)])
def test_half_of_a_batch_is_new_rounded_down(batch_size: int, num_new: int) -> None:
    schedule = draw_schedule(
        np.random.default_rng(0), old_rows=9, new_rows=9, iterations=3, batch_size=batch_size
    )
    assert schedule.num_new == num_new


def test_a_batch_is_all_new_where_there_is_no_buffer() -> None:
    schedule = draw_schedule(
        np.random.default_rng(0), old_rows=0, new_rows=9, iterations=3, batch_size=5
    )
    assert schedule.num_new == 5


def test_passes_are_shuffled_differently() -> None:
    schedule = draw_schedule(
        np.random.default_rng(0), old_rows=0, new_rows=50, iterations=2, batch_size=50
    )
    assert sorted(schedule.batches[0]) == sorted(schedule.batches[1])
    assert schedule.batches[0].tolist() != schedule.batches[1].tolist()

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from clinit.headtrain.stream.batches import mixed
from clinit.headtrain.stream.pool import TaskRows


def rows(base: int, earlier: int, new: int) -> TaskRows:
    total = base + earlier + new
    return TaskRows(2, np.arange(total), np.zeros(total, np.int64), base, base + earlier)


def counts(mix: str, data: TaskRows, batch_size: int = 256) -> list[int]:
    return [share.count for share in mixed(mix, data, batch_size)]


def test_the_first_task_is_half_new_in_both_mixes() -> None:
    assert counts("text", rows(50, 0, 9)) == counts("sgm", rows(50, 0, 9)) == [128, 128]


def test_later_batches_of_sgm_are_96_new_128_base_32_earlier() -> None:
    shares = mixed("sgm", rows(50, 7, 9), 256)
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
    shares = mixed(mix, rows(base, earlier, 2), batch_size)
    assert sum(share.count for share in shares) == batch_size
    assert all(share.stop > share.start for share in shares if share.count)

from __future__ import annotations

import numpy as np
import pytest

from clinit.headtrain.stream.buffer import Balanced, Buffer, Pool, TaskRows
from clinit.headtrain.stream.scenario import Task
from clinit.headtrain.stream.task_plan import Share, old_rows_of
from clinit.headtrain.study import HEAD_METHODS


def test_naive_reads_no_old_row_and_joint_all_of_them() -> None:
    labels = np.repeat(np.arange(6), [3, 2, 4, 1, 5, 2])
    pool = Pool((np.zeros((17, 1), np.float32), labels))
    buffer = Buffer(pool, Balanced(4), seed=0)
    task = Task(2, np.arange(2), start=4)
    old = {name: old_rows_of(name).old_rows(pool, buffer, task) for name in HEAD_METHODS}
    assert len(old["naive"]) == 0
    assert len(old["rehearsal"]) == 4
    for name in ("joint", "ncm", "ridge", "lda"):
        assert labels[old[name]].tolist() == [0] * 3 + [1] * 2 + [2] * 4 + [3]


def test_batches_of_naive_are_new_and_those_of_joint_come_from_all_rows() -> None:
    data = TaskRows(1, np.arange(10), np.zeros(10, np.int64), 4, 6)
    assert old_rows_of("naive").shares(data, 8) == (Share(6, 10, 8),)
    assert old_rows_of("joint").shares(data, 8) == (Share(0, 10, 8),)
    assert old_rows_of("rehearsal").shares(data, 7) == (Share(6, 10, 3), Share(0, 6, 4))


def test_a_method_that_nobody_knows_is_refused() -> None:
    with pytest.raises(ValueError, match="there is no method 'replay'"):
        old_rows_of("replay")

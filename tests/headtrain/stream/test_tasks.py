from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from clinit.errors import ExperimentError
from clinit.headtrain.stream.scenario import shuffled, split_into_tasks


@given(
    num_classes=st.integers(1, 60),
    share=st.floats(0, 1),
    first_row=st.integers(0, 20),
    seed=st.integers(0, 5),
)
def test_every_class_arrives_once_and_rows_follow_the_order_of_arrival(
    num_classes: int, share: float, first_row: int, seed: int
) -> None:
    classes = np.arange(num_classes) * 3
    num_tasks = 1 + int(share * (num_classes - 1))
    tasks = split_into_tasks(shuffled(classes, seed), tasks=num_tasks, first_row=first_row)
    assert sorted(np.concatenate([task.classes for task in tasks])) == list(classes)
    assert [task.number for task in tasks] == list(range(1, num_tasks + 1))
    rows = np.concatenate([task.rows for task in tasks])
    np.testing.assert_array_equal(rows, first_row + np.arange(num_classes))
    sizes = [len(task.classes) for task in tasks]
    assert max(sizes) - min(sizes) <= 1
    assert sizes == sorted(sizes, reverse=True)


def test_the_order_depends_on_the_seed_and_not_on_the_number_of_tasks() -> None:
    def order(seed: int, tasks: int) -> list[int]:
        stream = split_into_tasks(shuffled(np.arange(30), seed), tasks=tasks, first_row=0)
        return [int(label) for task in stream for label in task.classes]

    assert order(0, 5) == order(0, 3)
    assert order(0, 5) != order(1, 5)
    assert order(0, 5) != sorted(order(0, 5))


def test_more_tasks_than_classes_are_refused_with_both_numbers() -> None:
    with pytest.raises(ExperimentError, match="4 tasks were asked for, but only 3 new") as caught:
        split_into_tasks(np.arange(3), tasks=4, first_row=0)
    assert caught.value.remedy == "Ask for at most 3 tasks with --tasks."

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from clinit.errors import ExperimentError
from clinit.headtrain.stream.buffer import Pool
from clinit.headtrain.stream.scenario import Scenario, Task
from clinit.headtrain.stream.task_plan import TaskPlan
from clinit.headtrain.study import Study

BASE, PER_CLASS = 40, 30
TASKS = (Task(1, np.array([0, 1]), BASE), Task(2, np.array([2, 3]), BASE + 2))


def plan(counts: list[int] | None = None, **settings: Any) -> TaskPlan:
    counts = counts or [PER_CLASS] * (BASE + 4)
    labels = np.random.default_rng(0).permutation(np.repeat(np.arange(BASE + 4), counts))
    sides = Pool((np.random.default_rng(1).normal(size=(len(labels), 8)), labels))
    scenario = Scenario(BASE, TASKS, tuple(map(str, range(BASE + 4))), sides, sides)
    given = {"tasks": 2, "correct": "bic", "buffer": 400, **settings}
    return TaskPlan(scenario, Study.of(given).resolved())


@pytest.mark.parametrize("settings", [{"buffer": 400}, {"buffer": 40}, {"method": "joint"}])
def test_a_tenth_is_kept_aside_of_old_and_of_new_rows(settings: dict[str, Any]) -> None:
    if "method" in settings:
        settings["buffer"] = None
    for task in TASKS:
        aside, rows = plan(**settings).rows_aside(task), plan(**settings).rows(task)
        assert not set(aside.rows) & set(rows.rows)
        assert aside.num_new == 2 * PER_CLASS / 10
        total = aside.num_old + rows.num_old
        assert aside.num_old == pytest.approx(total / 10, rel=0.5)
        assert (aside.labels[: aside.num_old] < task.start).all()


def test_a_row_that_is_kept_aside_once_is_trained_on_in_no_task() -> None:
    found = plan()
    aside = np.concatenate([found.rows_aside(task).rows for task in TASKS])
    seen = np.concatenate([found.rows(task).rows for task in TASKS])
    assert not set(aside) & set(seen)
    start = found.start_rows(TASKS[1], found.rows(TASKS[1]))
    assert not set(aside) & set(start.rows)
    alone = plan(init_rows="new")
    new = alone.start_rows(TASKS[1], alone.rows(TASKS[1]))
    assert not set(aside) & set(new.rows)


def test_classes_keep_as_many_rows_aside_as_each_other_up_to_one() -> None:
    counts = np.bincount(plan(buffer=600).rows_aside(TASKS[1]).labels, minlength=BASE + 4)
    assert set(counts[: BASE + 2]) <= {1, 2}
    assert set(counts[BASE + 2 :]) == {3}


def test_without_bias_correction_no_row_is_kept_aside() -> None:
    for correct in ("none", "wa"):
        found = plan(correct=correct)
        assert not len(found.rows_aside(TASKS[0]).rows)
        assert found.rows(TASKS[0]).num_old == 400
        found.check_rows_aside()


def test_single_images_are_all_trained_on_and_cannot_be_corrected_by() -> None:
    found = plan([PER_CLASS] * BASE + [1] * 4)
    assert found.rows(TASKS[0]).num_new == 2
    with pytest.raises(ExperimentError, match="of the new classes of task 1 this is none") as error:
        found.check_rows_aside()
    assert "--correct wa" in error.value.remedy


def test_old_classes_of_a_single_image_keep_a_tenth_of_these_aside() -> None:
    rows = plan([1] * BASE + [PER_CLASS] * 4).rows_aside(TASKS[0])
    assert 1 <= rows.num_old <= 9


def test_a_buffer_too_small_to_keep_rows_aside_is_named() -> None:
    with pytest.raises(ExperimentError, match="of the old classes of task 1 this is none"):
        plan(buffer=1).check_rows_aside()

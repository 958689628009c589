"""The rows and the batches of a task."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st

from clinit.headtrain.protocol.stream.buffer import Pool, TaskRows
from clinit.headtrain.protocol.stream.scenario import Scenario, Task
from clinit.headtrain.protocol.stream.task_plan import (
    BatchShare,
    Schedule,
    TaskPlan,
    draw_schedule,
    draw_uniform,
    mixed,
)
from clinit.headtrain.protocol.study.study import Study

TRAIN = [12, 3, 9, 20, 1, 15, 6, 9, 11]
"""Training rows per class: five base classes, then two tasks of two."""
BASE, TASKS = 5, (Task(1, np.array([0, 1]), 5), Task(2, np.array([2, 3]), 7))


def scenario() -> Scenario:
    labels = np.random.default_rng(0).permutation(np.repeat(np.arange(9), TRAIN))
    features = np.random.default_rng(1).normal(size=(len(labels), 8)).astype(np.float32)
    tested = np.repeat(np.arange(9), [1, 1, 1, 1, 1, 2, 3, 4, 5])
    return Scenario(
        num_base=BASE,
        tasks=TASKS,
        class_names=tuple("abcdefghi"),
        train=Pool((features, labels)),
        val=Pool((np.zeros((len(tested), 8), np.float32), tested)),
    )


def study(**changes: Any) -> Study:
    settings = {"tasks": 2, "iterations": 6, "batch_size": 8, "mix": "text"}
    return Study.of({**settings, **changes}).resolved()


def plan(**changes: Any) -> TaskPlan:
    return TaskPlan(scenario(), study(**changes))


@pytest.mark.parametrize("task", TASKS, ids=["first", "second"])
@pytest.mark.parametrize(
    ("settings", "old"),
    [({"buffer": 15}, 15), ({"method": "naive"}, 0), ({"method": "joint"}, None)],
)
def test_a_task_sees_all_rows_of_its_classes_behind_old_ones(
    settings: dict[str, Any], old: int | None, task: Task
) -> None:
    rows, train = plan(**settings).rows(task), scenario().train
    assert rows.number == task.number
    np.testing.assert_array_equal(rows.labels, train.labels[rows.rows])
    assert len(set(rows.rows.tolist())) == len(rows.rows)
    assert rows.rows[rows.num_old :].tolist() == train.rows_between(task.start, task.stop).tolist()
    assert (rows.labels[: rows.num_base] < BASE).all()
    assert (rows.labels[rows.num_base : rows.num_old] >= BASE).all()
    assert (rows.labels[: rows.num_old] < task.start).all()
    assert rows.num_old == (sum(TRAIN[: task.start]) if old is None else old)


@pytest.mark.parametrize("task", TASKS, ids=["first", "second"])
def test_a_buffer_for_initialisation_alone_is_that_of_rehearsal(task: Task) -> None:
    naive, rehearsal = plan(method="naive", init_rows="buffer", buffer=15), plan(buffer=15)
    trained, expected = naive.rows(task), rehearsal.rows(task)
    seen = naive.start_rows(task, trained)
    np.testing.assert_array_equal(seen.rows, expected.rows)
    assert (seen.num_old, seen.num_base) == (expected.num_old, expected.num_base)
    assert trained.num_old == 0


def test_what_the_buffer_keeps_is_of_the_task_and_a_base_sample_is_balanced() -> None:
    task_plan, labels = plan(buffer=15), scenario().train.labels
    following = task_plan.rows(TASKS[1])
    kept = following.rows[following.num_base : following.num_old]
    assert np.unique(labels[kept]).tolist() == [5, 6]
    assert sorted(np.bincount(labels[task_plan.base_sample(11)])) == [1, 2, 2, 3, 3]
    assert len(task_plan.base_sample(10**6)) == sum(TRAIN[:BASE])


def test_batches_are_drawn_anew_for_each_task() -> None:
    task_plan = plan(buffer=15)
    first, second = (task_plan.rows(task) for task in TASKS)
    schedule = task_plan.schedule(second)
    assert schedule.batches.shape == (6, 8)
    assert (schedule.num_new == 4).all()
    assert (schedule.batches[:, :4] >= second.num_old).all()
    assert (schedule.batches[:, 4:] < second.num_old).all()
    np.testing.assert_array_equal(schedule.batches, task_plan.schedule(second).batches)
    other = plan(buffer=15, seed=1)
    assert not np.array_equal(other.schedule(other.rows(TASKS[1])).batches, schedule.batches)
    assert task_plan.schedule(first).batches.max() < len(first.rows)


def draw(*shares: BatchShare, first_new: int, iterations: int = 3) -> Schedule:
    random = np.random.default_rng(0)
    return draw_schedule(random, shares, first_new=first_new, iterations=iterations)


@given(
    ranges=st.lists(st.tuples(st.integers(1, 20), st.integers(0, 15)), min_size=1, max_size=3),
    iterations=st.integers(0, 12),
)
def test_a_row_comes_again_only_after_all_others_of_its_range(
    ranges: list[tuple[int, int]], iterations: int
) -> None:
    starts = np.cumsum([0, *(size for size, _ in ranges)])
    shares = [
        (range(int(start), int(start) + size), count)
        for start, (size, count) in zip(starts, ranges, strict=False)
    ]
    schedule = draw(*shares, first_new=shares[-1][0].start, iterations=iterations)
    assert schedule.batches.shape == (iterations, sum(count for _, count in ranges))
    assert schedule.num_new.tolist() == [shares[-1][1]] * iterations
    flat = schedule.batches.ravel()
    for rows, count in shares:
        drawn = flat[(flat >= rows.start) & (flat < rows.stop)]
        assert len(drawn) == iterations * count
        counted = np.bincount(drawn - rows.start, minlength=len(rows))
        assert counted.max() - counted.min() <= 1


def test_new_rows_come_first_in_a_batch_of_one_range() -> None:
    schedule = draw((range(30), 10), first_new=20, iterations=6)
    for batch, new in zip(schedule.batches, schedule.num_new, strict=True):
        assert (batch[:new] >= 20).all()
        assert (batch[new:] < 20).all()
    assert schedule.num_new[:3].sum() == schedule.num_new[3:].sum() == 10
    assert schedule.new_share.tolist() == (schedule.num_new / 10).tolist()
    assert sorted(schedule.batches[:3].ravel()) == sorted(schedule.batches[3:].ravel())
    assert schedule.batches[:3].tolist() != schedule.batches[3:].tolist()


@given(
    sizes=st.lists(st.integers(1, 9), min_size=1, max_size=6),
    iterations=st.integers(0, 40),
    batch=st.integers(1, 11),
    seed=st.integers(0, 9),
)
def test_classes_come_equally_often_in_uniform_batches_and_so_do_their_rows(
    sizes: list[int], iterations: int, batch: int, seed: int
) -> None:
    # Labels of any order, with classes between them that have no row.
    random, half = np.random.default_rng(seed), sum(sizes) // 2
    labels = random.permutation(np.repeat(3 * np.arange(len(sizes)), sizes))
    schedule = draw_uniform(random, labels, first_new=half, iterations=iterations, batch_size=batch)
    assert schedule.batches.shape == (iterations, batch)
    flat = schedule.batches.ravel()
    of_class = np.bincount(labels[flat], minlength=3 * len(sizes))[::3]
    assert of_class.sum() == iterations * batch
    assert of_class.max() - of_class.min() <= 1
    of_row = np.bincount(flat, minlength=len(labels))
    for label in np.unique(labels):
        own = of_row[labels == label]
        assert own.max() - own.min() <= 1
    is_new = schedule.batches >= half
    assert (is_new.sum(1) == schedule.num_new).all()
    assert (is_new == (np.arange(batch) < schedule.num_new[:, None])).all()


def test_every_class_is_equally_likely_at_every_place_of_uniform_batches() -> None:
    labels = np.repeat([0, 1, 2], [1, 30, 2])
    draws, seen = 3000, np.zeros((4, 3))
    for seed in range(draws):
        schedule = draw_uniform(
            np.random.default_rng(seed), labels, first_new=33, iterations=2, batch_size=2
        )
        np.add.at(seen, (np.arange(4), labels[schedule.batches.ravel()]), 1)
    # Each place is a draw of one of three: five deviations of a binomial.
    assert abs(seen / draws - 1 / 3).max() < 5 * np.sqrt(2 / 9 / draws)


def test_uniform_batches_look_at_the_rows_of_their_method() -> None:
    for settings, counts in (({"buffer": 15}, None), ({"method": "joint"}, TRAIN)):
        task_plan = plan(mix="uniform", iterations=90, batch_size=9, **settings)
        rows = task_plan.rows(TASKS[1])
        found = rows.labels[task_plan.schedule(rows).batches]
        assert np.bincount(found.ravel()).tolist() == [90] * 9
        if counts:
            assert np.bincount(rows.labels).tolist() == counts


def test_one_row_stands_for_each_old_class_that_is_drawn() -> None:
    task_plan = plan(old_rows="statistics")
    rows = task_plan.rows(TASKS[1])
    assert rows.labels[: rows.num_old].tolist() == [*range(7)]
    assert (rows.rows[: rows.num_old] == -1).all()
    assert (rows.num_base, len(rows.stored_old), rows.num_new) == (5, 0, 20)
    assert (task_plan.schedule(rows).num_new == 4).all()
    seen = task_plan.start_rows(TASKS[1], rows)
    drawn = np.bincount(seen.labels[: seen.num_old])
    assert len({*drawn}) == 1
    assert drawn.sum() >= 2 * 8, "as many pairs as features are wide"
    assert (seen.rows[seen.num_old :] == rows.rows[rows.num_old :]).all()


def test_the_past_is_all_rows_of_the_classes_before_the_last_ones_new() -> None:
    for tasks, (start, stop) in enumerate([(0, 5), (5, 7), (7, 9)]):
        past = plan().past(tasks)
        assert np.bincount(past.labels).tolist() == TRAIN[:stop]
        assert np.unique(past.labels[past.num_old :]).tolist() == [*range(start, stop)]


def shares_of(base: int, earlier: int, new: int, method: str = "rehearsal") -> list[Any]:
    total = base + earlier + new
    rows = TaskRows(2, np.arange(total), np.zeros(total, np.int64), base, base + earlier)
    return [(each.start, each.stop, count) for each, count in mixed(method, rows, 256)]


def test_batches_are_mixed_as_their_method_says() -> None:
    assert shares_of(50, 7, 9) == [(57, 66, 128), (0, 57, 128)]
    assert shares_of(4, 2, 4, "naive") == [(6, 10, 256)]
    assert shares_of(4, 2, 4, "joint") == [(0, 10, 256)]


@given(base=st.integers(0, 3), earlier=st.integers(0, 3))
def test_the_shares_fill_the_batch_and_ask_for_nothing_that_is_not_there(
    base: int, earlier: int
) -> None:
    shares = shares_of(base, earlier, 2)
    assert sum(count for _, _, count in shares) == 256
    assert all(stop > start for start, stop, count in shares if count)

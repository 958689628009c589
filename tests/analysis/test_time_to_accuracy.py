from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clinit.analysis.metrics.efficiency import (
    LEVELS,
    MeanTime,
    Reached,
    mean_times,
    times_to_levels,
)
from clinit.analysis.report.report import load_report, report_of
from clinit.headtrain.record.format import RunRecord

MakeRun = Callable[..., RunRecord]
Curve = Sequence[float | None]
SCHEMA = {"task": pl.Int16, "iteration": pl.Int32, "acc_new": pl.Float64, "elapsed_s": pl.Float64}


def frame(*tasks: Curve, pace: float = 1.0) -> pl.DataFrame:
    """Tasks with an evaluation every 50 iterations, `pace` seconds after the one before."""
    rows, elapsed = [], 0.0
    for number, curve in enumerate(tasks, 1):
        for index, accuracy in enumerate(curve):
            elapsed += pace
            rows.append((number, 50 * index, accuracy, elapsed))
    return pl.DataFrame(rows, schema=SCHEMA, orient="row")


def naive(run: Curve, random: Curve, level: int, pace: float) -> tuple[int, float] | None:
    """Iterations and seconds, evaluation by evaluation."""
    target = level / 100 * max(value for value in random if value is not None)
    for index, value in enumerate(run):
        if value is not None and value >= target - 1e-9:
            return 50 * index, pace * (index + 1)
    return None


curves = st.lists(st.integers(0, 60).map(lambda n: 100 * n / 60), min_size=2, max_size=8)


@settings(deadline=None)
@given(st.lists(st.tuples(curves, curves), min_size=1, max_size=3))
def test_times_are_those_of_looking_at_one_evaluation_after_the_other(
    tasks: list[tuple[list[float], list[float]]],
) -> None:
    run, random = zip(*tasks, strict=True)
    found = times_to_levels(frame(*run, pace=0.5), frame(*random))
    assert [*found] == [task for task, curve in enumerate(random, 1) if max(curve) > 0]
    for task, times in found.items():
        for level in LEVELS:
            reached = times[level]
            expected = naive(run[task - 1], random[task - 1], level, 0.5)
            if reached is None:
                assert expected is None
            else:
                assert (reached.iterations, reached.seconds) == pytest.approx(expected)


def test_a_level_above_the_start_is_reached_after_no_iteration_but_some_seconds() -> None:
    found = times_to_levels(frame([80.0, 80.0], [10.0, 80.0]), frame([0.0, 80.0], [0.0, 80.0]))
    assert found[1][95] == Reached(0, 1.0)
    # Counted from the last evaluation of the first task, at 2 seconds.
    assert found[2][95] == Reached(50, 2.0)


def test_a_level_never_reached_has_neither_and_counts_in_the_share() -> None:
    random = frame([0.0, 100.0], [0.0, 100.0], [0.0, 100.0])
    found = times_to_levels(frame([0.0, 92.0], [0.0, 96.0], [0.0, 50.0]), random)
    assert found[3] == dict.fromkeys(LEVELS)
    means = mean_times(found)
    assert means[90] == MeanTime(50.0, 2.0, 2 / 3)
    assert means[95] == MeanTime(50.0, 2.0, 1 / 3)
    assert means[99] == MeanTime(None, None, 0.0)


def test_tasks_without_a_level_do_not_count() -> None:
    for silent in ([None, None], [0.0, 0.0], [80.0]):
        assert times_to_levels(frame([90.0, 90.0]), frame(silent)) == {}
    assert mean_times({})[95] == MeanTime(None, None, None)


def test_random_reaches_its_own_levels_in_their_order() -> None:
    times = times_to_levels(*[frame([0.0, 91.0, 96.0, 100.0])] * 2)[1]
    assert [times[level] for level in LEVELS] == [
        Reached(50, 2.0),
        Reached(100, 3.0),
        Reached(150, 4.0),
    ]


def test_the_row_of_a_run_has_means_and_those_of_its_tasks_what_was_reached(
    three_inits: Path,
) -> None:
    for row in load_report([three_inits]).rows():
        for level in LEVELS:
            name = f"iterations_to_{level}"
            reached = [task[name] for task in row["tasks"] if task[name] is not None]
            assert row[name] == pytest.approx(sum(reached) / len(reached))
            assert row[f"share_reaching_{level}"] == len(reached) / 3
        # The record of the test: 0.02 s before the first update, 0.01 s per iteration.
        for task in row["tasks"]:
            expected = 0.02 + 0.01 * task["iterations_to_95"]
            assert task["seconds_to_95"] == pytest.approx(expected)
            assert task["iterations_to_95"] == task["reached_at"]


def test_a_run_without_a_random_one_has_no_times(make_run: MakeRun) -> None:
    (row,) = report_of([make_run("least-square")]).rows()
    for level in LEVELS:
        names = (f"iterations_to_{level}", f"seconds_to_{level}", f"share_reaching_{level}")
        assert [row[name] for name in names] == [None] * 3
        assert [task[f"iterations_to_{level}"] for task in row["tasks"]] == [None] * 3

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from clinit.analysis.metrics.efficiency import initialisation_seconds, spikes
from clinit.analysis.report.run import RunSummary
from clinit.headtrain.protocol.record.info import TABLES
from tests.analysis.conftest import MakeRun

losses = st.lists(st.floats(0, 1e4, width=32), min_size=1, max_size=40)


def naive(values: Sequence[float]) -> tuple[float, float]:
    """Height and area, step by step."""
    number = max(1, len(values) // 10)
    settled = 0.0
    for value in values[len(values) - number :]:
        settled += value / number
    height, area = -math.inf, 0.0
    for value in values:
        height = max(height, value - settled)
        if value > settled:
            area += value - settled
    return height, area


def steps(*tasks: Sequence[float | None]) -> pl.DataFrame:
    rows = [
        (number, iteration, loss, 77.0, None)
        for number, values in enumerate(tasks, 1)
        for iteration, loss in enumerate(values)
    ]
    return pl.DataFrame(rows, schema=dict(TABLES["steps"]), orient="row")


@given(losses)
def test_a_spike_is_that_of_the_steps_one_by_one(values: list[float]) -> None:
    ((_, area, height),) = spikes(steps(values)).rows()
    assert (height, area) == pytest.approx(naive(values), rel=1e-9, abs=1e-6)


@pytest.mark.parametrize("odd", [float("nan"), float("inf"), None])
@pytest.mark.parametrize("place", [0, 5, -1])
def test_a_task_without_a_finite_loss_has_no_spike(odd: float | None, place: int) -> None:
    curve: list[float | None] = [3.0, 2.0, 2.0, 1.0, 1.0, 1.0, 1.0]
    curve[place] = odd
    found = spikes(steps(curve, [2.0, 1.0])).sort("task").rows()
    assert found == [(1, None, None), (2, 1.0, 1.0)]


@pytest.mark.parametrize(
    ("seconds", "expected"), [((1.0, 2.5), 3.5), ((1.0, None), None), ((), None)]
)
def test_the_seconds_of_initialisation_are_those_of_all_tasks(
    seconds: Sequence[float | None], expected: float | None
) -> None:
    told: list[Any] = [{"task": n, "initialisation": {"seconds": s}} for n, s in enumerate(seconds)]
    assert initialisation_seconds(told) == expected
    assert initialisation_seconds([*told, {"task": 9, "initialisation": None}]) is None


def test_a_run_has_the_mean_over_its_tasks_of_the_loss_of_the_batch(make_run: MakeRun) -> None:
    record = replace(make_run(tasks=2), steps=steps([5.0, 1.0, 1.0], [9.0, 8.0, 1.0]))
    row = RunSummary.of(record).row()
    assert (row["spike_area"], row["spike_height"]) == ((4 + 15) / 2, (4 + 8) / 2)
    assert [task["spike_area"] for task in row["tasks"]] == [4, 15]
    odd = replace(record, steps=steps([5.0, 1.0], [float("nan"), 1.0]))
    assert RunSummary.of(odd).row()["spike_area"] is None, "a mean over other tasks"
    untrained = RunSummary.of(make_run(iterations=0)).row()
    assert (untrained["spike_area"], untrained["spike_height"]) == (None, None)

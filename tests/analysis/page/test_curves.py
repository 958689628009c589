import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given, strategies as st

from clinit.analysis.page.data import curves, thin
from clinit.analysis.report.run import RunSummary
from clinit.headtrain.protocol.record.format import RunRecord
from tests.analysis.conftest import MakeRun

numbers = st.lists(st.floats(-1e6, 1e6) | st.just(math.nan), min_size=1, max_size=300)


def decoded(found: dict[str, Any], name: str, run: int) -> list[tuple[int, int, float | None]]:
    """Return task, iteration and value of each point of a curve."""
    points = []
    for task, (grid, values) in enumerate(found["of"][name][run], 1):
        iterations = np.cumsum(found["grids"][grid]).tolist()
        points += [(task, i, v) for i, v in zip(iterations, values, strict=True)]
    return points


@given(numbers, st.integers(4, 40))
def test_thinning_keeps_the_extremes_and_both_ends(values: list[float], most: int) -> None:
    array = np.array(values)
    kept = thin(array, most)
    assert (np.diff(kept) > 0).all()
    assert {0, len(values) - 1} <= set(kept.tolist())
    assert len(kept) <= most + 1
    finite = array[np.isfinite(array)]
    if len(finite):
        assert finite.min() in array[kept]
        assert finite.max() in array[kept]


def test_spikes_at_task_switches_survive_the_thinning(
    make_run: MakeRun, noisy: Callable[..., RunRecord]
) -> None:
    record = noisy(make_run(tasks=5, iterations=2_000, every=500))
    found = curves([RunSummary.of(record)] * 20)
    drawn = decoded(found, "loss", 0)
    assert found["thinned"]
    assert len(drawn) < 600
    for task in range(1, 6):
        steps = record.steps.filter(pl.col("task") == task)["loss"]
        values = [value for of, _, value in drawn if of == task and value is not None]
        assert max(values) == pytest.approx(steps.max(), rel=1e-3)
        assert min(values) == pytest.approx(steps.min(), rel=1e-3)
        _, iteration, value = drawn[[of for of, _, _ in drawn].index(task)]
        assert iteration == 0
        assert value == pytest.approx(steps[0], rel=1e-3)


def test_losses_that_are_no_numbers_are_gaps(make_run: MakeRun) -> None:
    record, losses = make_run(iterations=4, every=2), [1.0, math.nan, math.inf, None] * 3
    steps = record.steps.with_columns(loss=pl.Series(losses, dtype=pl.Float32))
    found = curves([RunSummary.of(replace(record, steps=steps))])
    assert [value for _, _, value in decoded(found, "loss", 0)] == [1, None, None, None] * 3


@pytest.mark.parametrize(("peak", "log"), [(90.0, True), (0.5, False)])
def test_the_loss_of_steps_is_logarithmic_where_it_spans_decades(
    make_run: MakeRun, noisy: Callable[..., RunRecord], peak: float, log: bool
) -> None:
    assert curves([RunSummary.of(noisy(make_run(), peak=peak))])["log"]["loss"] == log

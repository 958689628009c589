from __future__ import annotations

from collections.abc import Callable, Sequence

import polars as pl
import pytest

from clinit.analysis.metrics.efficiency import gain
from clinit.headtrain.record.format import RunRecord

MakeRun = Callable[..., RunRecord]


def curve(*accuracies: float) -> pl.DataFrame:
    """A curve with an evaluation every 50 iterations, from the start."""
    return pl.DataFrame(
        {
            "task": [1] * len(accuracies),
            "iteration": [50 * index for index in range(len(accuracies))],
            "acc_new": [*map(float, accuracies)],
        },
        schema={"task": pl.Int16, "iteration": pl.Int32, "acc_new": pl.Float64},
    )


RANDOM = curve(0, 50, 96, 100)
"""At 95 % of its best at 100, at its best at 150."""


@pytest.mark.parametrize(
    ("run", "random", "equal", "best"),
    [
        ((95, 96, 96, 96), RANDOM, True, True),
        ((94, 96, 96, 96), RANDOM, False, False),
        ((0, 0, 0, 0), RANDOM, False, False),
        # Random is at the level before its first step too: only its best is later.
        ((95, 95, 95, 95), curve(96, 97, 98, 100), False, True),
        ((95, 95, 95, 95), curve(100, 97, 98, 100), False, False),
    ],
)
def test_a_gain_is_bounded_where_the_run_is_there_at_its_start_and_random_is_not(
    run: Sequence[float], random: pl.DataFrame, equal: bool, best: bool
) -> None:
    found = gain(curve(*run), random)
    assert (found.bounded("equal-level"), found.bounded("random-best")) == (equal, best)


def slow(task: int, iteration: int) -> float:
    return {0: 0.0, 50: 0.4}.get(iteration, 0.9)


def at(init: str, iteration: int) -> float:
    return 0.9 if init == "least-square" or iteration > 1 else 0.0

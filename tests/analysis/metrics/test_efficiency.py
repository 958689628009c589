from collections.abc import Sequence

import numpy as np
import polars as pl
import pytest

from clinit.analysis.metrics import efficiency
from clinit.analysis.metrics.efficiency import gain, mean_gain


def curve(*accuracies: float | None, task: int = 1) -> pl.DataFrame:
    """A curve with an evaluation every 50 iterations, from the start."""
    iterations = [50 * index for index in range(len(accuracies))]
    return pl.DataFrame(
        {"task": [task] * len(iterations), "iteration": iterations, "acc_new": accuracies},
        schema={"task": pl.Int16, "iteration": pl.Int32, "acc_new": pl.Float64},
    )


RANDOM = curve(0, 40, 70, 77, 80, 79)


def naive(run: Sequence[float], random: Sequence[float]) -> float | None:
    """I_r / I_d as written in docs/metrics.md, for evaluations every 50 iterations."""
    best = max(random)
    of_run = [50 * i for i, accuracy in enumerate(run) if accuracy >= 0.95 * best - 1e-9]
    of_random = [50 * i for i, accuracy in enumerate(random) if accuracy >= 0.95 * best - 1e-9]
    if not of_run or max(of_run[0], of_random[0]) <= 50:
        return None
    return max(of_random[0], 50) / max(of_run[0], 50)


def test_the_gain_of_any_curves_is_the_formula() -> None:
    draw, found = np.random.default_rng(0), []
    for _ in range(200):
        counts = np.sort(draw.integers(1, 60, (2, 8))) + draw.integers(0, 8, (2, 8))
        run, random = (100 * counts / 67).tolist()
        found.append(mean_gain(gain(curve(*run), curve(*random)))["gain_equal_level"])
        assert found[-1] == naive(run, random)
    assert len(set(found)) > 10
    assert None in found


def test_a_level_never_reached_has_no_gain_and_is_counted() -> None:
    random = pl.concat([RANDOM, curve(0, 40, 70, 77, 80, 79, task=2)])
    run = pl.concat([curve(0, 10, 20, 30, 40, 50), curve(0, 76, 0, 0, 0, 0, task=2)])
    found = gain(run, random)
    assert found["gain_equal_level"].to_list() == [None, 3.0]
    means = mean_gain(found)
    assert (means["gain_equal_level"], means["gain_tasks_reached"]) == (3.0, 1)
    assert mean_gain(gain(curve(0, 0, 0), RANDOM))["gain_equal_level"] is None


def test_a_value_equal_to_the_level_is_not_missed_by_rounding() -> None:
    almost = 100 * 57 / 60  # 0.95 * 100 in another order of operations
    assert gain(curve(0, almost), curve(0, 0, 100))["reached_at"].to_list() == [50]


@pytest.mark.parametrize(
    ("random", "reason"),
    [
        (curve(None, None), efficiency.NO_TEST_IMAGE),
        (curve(None), efficiency.NO_TEST_IMAGE),
        (curve(0, 0), efficiency.NOTHING_LEARNT),
        (curve(80), efficiency.NO_STEP),
        (curve(0), efficiency.NO_STEP),
    ],
)
def test_a_task_in_which_random_shows_nothing_is_left_out_with_its_reason(
    random: pl.DataFrame, reason: str
) -> None:
    found = gain(RANDOM, random)
    assert found["reason"].to_list() == [reason]
    assert (mean_gain(found)["gain_tasks"], mean_gain(found)["gain_equal_level"]) == (0, None)
    second = curve(0, 0, 80, task=2)
    later = gain(pl.concat([RANDOM, second]), pl.concat([random, second]))
    assert later["reason"].to_list() == [reason, None]
    assert mean_gain(later)["gain_equal_level"] == 1.0


@pytest.mark.parametrize(
    ("run", "value", "below"),
    [
        ((90, 90, 90), None, 50),  # before the first step
        ((0, 90, 90), None, 50),
        ((0, 0, 90), 0.5, None),
        ((0, 80, 80), 1.0, None),  # the random run itself
    ],
)
def test_where_the_grid_of_evaluations_decides_the_gain_has_only_an_upper_bound(
    run: tuple[float, ...], value: float | None, below: int | None
) -> None:
    found = mean_gain(gain(curve(*run), curve(0, 80, 80)))
    assert (found["gain_equal_level"], found["gain_equal_level_below"]) == (value, below)
    assert found["gain_equal_level_bounded"] == 0


BOUNDING = curve(0, 50, 96, 100)
"""At 95 % of its best at 100, at its best at 150."""


@pytest.mark.parametrize(
    ("run", "random", "bounded"),
    [
        ((95, 96, 96, 96), BOUNDING, True),
        ((94, 96, 96, 96), BOUNDING, False),
        ((0, 0, 0, 0), BOUNDING, False),
        # Random is at the level before its first step too.
        ((95, 95, 95, 95), curve(96, 97, 98, 100), False),
    ],
)
def test_a_gain_is_bounded_where_the_run_is_there_at_its_start_and_random_is_not(
    run: Sequence[float], random: pl.DataFrame, bounded: bool
) -> None:
    assert mean_gain(gain(curve(*run), random))["gain_equal_level_bounded"] == bounded

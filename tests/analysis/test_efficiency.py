from __future__ import annotations

from collections.abc import Callable

import polars as pl
import pytest

from clinit.analysis.efficiency import comparison_key, gain
from clinit.headtrain.record import RunRecord


def curve(*accuracies: float | None, task: int = 1) -> pl.DataFrame:
    """A curve with an evaluation every 50 iterations, from the start."""
    iterations = [50 * index for index in range(len(accuracies))]
    return pl.DataFrame(
        {"task": [task] * len(iterations), "iteration": iterations, "acc_new": accuracies},
        schema={"task": pl.Int16, "iteration": pl.Int32, "acc_new": pl.Float64},
    )


RANDOM = curve(0, 40, 70, 77, 80, 79)


def test_both_readings_of_a_curve_made_by_hand() -> None:
    # 95 % of 80 is 76: random is there at 150 and best at 200, the run is there at 100.
    found = gain(curve(60, 75, 76, 70, 81, 90), RANDOM)
    (task,) = found.tasks
    assert (task.target, task.reached, task.random_level, task.random_peak) == (76.0, 100, 150, 200)
    assert found.mean("peak") == 2.0
    assert found.mean("level") == 1.5
    assert found.complete


def test_a_run_over_the_level_before_its_first_step_counts_at_the_first_point_after() -> None:
    found = gain(curve(78, 79, 80, 80, 80, 80), RANDOM)
    assert found.tasks[0].reached == 0
    assert found.mean("peak") == 4.0
    assert found.mean("level") == 3.0


def test_the_gain_does_not_depend_on_the_point_before_the_first_step() -> None:
    run = curve(78, 79, 80, 80, 80, 80)
    later = pl.col("iteration") > 0
    without = gain(run.filter(later), RANDOM.filter(later))
    assert without.mean("peak") == gain(run, RANDOM).mean("peak")


def test_random_that_is_best_before_its_first_step_counts_at_the_first_point_too() -> None:
    falling = curve(80, 70, 60)
    assert gain(curve(79, 60, 60), falling).mean("peak") == 1.0
    assert gain(curve(10, 60, 77), falling).mean("peak") == 0.5


def test_the_random_run_against_itself_gains_nothing_at_the_level() -> None:
    assert gain(RANDOM, RANDOM).mean("level") == 1.0


def test_a_level_never_reached_has_no_gain_and_is_counted() -> None:
    random = pl.concat([RANDOM, curve(0, 40, 70, 77, 80, 79, task=2)])
    run = pl.concat([curve(0, 10, 20, 30, 40, 50), curve(0, 76, 0, 0, 0, 0, task=2)])
    found = gain(run, random)
    assert [task.value("peak") for task in found.tasks] == [None, 4.0]
    assert found.mean("peak") == 4.0
    assert (found.reached, found.complete) == (1, False)
    assert gain(curve(0, 0, 0), RANDOM).mean("peak") is None


def test_the_first_of_equally_good_points_is_randoms_best() -> None:
    assert gain(curve(0, 80, 80), curve(0, 50, 80, 80)).mean("peak") == 2.0


def test_a_value_equal_to_the_level_is_not_missed_by_rounding() -> None:
    third = 100 * 57 / 60  # 0.95 * 100 in another order of operations
    assert gain(curve(0, third), curve(0, 0, 100)).tasks[0].reached == 50


@pytest.mark.parametrize("random", [curve(None, None), curve(0, 0), curve(80)])
def test_a_task_in_which_random_shows_nothing_does_not_count(random: pl.DataFrame) -> None:
    # No test images; nothing learnt; no step at all.
    assert gain(RANDOM, random).tasks == ()
    assert gain(RANDOM, random).mean("peak") is None


def test_runs_are_compared_across_initialisations_and_places_only(
    make_run: Callable[..., RunRecord],
) -> None:
    key = comparison_key(make_run("random").info)
    alike = make_run("least-square", "norm", lam=5.0, bias="keep", class_mean="unit", device="cuda")
    assert comparison_key(alike.info) == key
    explicit = make_run("least-square", precision="float32")
    assert comparison_key(explicit.info) == key, "earlier records do not name a precision"
    for other in ({"seed": 1}, {"loss": "mse"}, {"lr": 0.1}, {"buffer": 1}, {"head_width": "full"}):
        assert comparison_key(make_run("least-square", **other).info) != key
    moved = make_run("least-square")
    moved.info["base"]["path"] = "elsewhere/imagenet_mini"
    assert comparison_key(moved.info) == key
    moved.info["new"]["fingerprint"] = {"weights": "b"}
    assert comparison_key(moved.info) != key

"""The efficiency gain: how many times faster a run learns a new task than the random run.

The random run is the run with random rows. For each task, let B be the best new-task accuracy of
the random run:

    gain = I_r / I_d,    I_d = iterations that the run needs to reach 0.95 B

The paper's appendix calls I_r "the number of iterations used by random initialization", without the
level to reach. Here it is the number that the random run needs to reach 0.95 B, too, so that the
gain of the random run itself is exactly 1.

Iterations are known only at evaluation points: "reached at 50" means between the previous point and
50. If a run is above the level *before* its first step (I_d = 0), the first evaluation point after
the step counts instead. So the gain is finite and at most I_r over this point, and does not depend
on whether the point before training was evaluated. The same rule applies to I_r.

If both runs are above their levels at the first evaluation after the start, such as 50, the grid of
evaluations decides: the gain is between 1/50 and 50, and the task has only this upper bound. The
gain of the random run itself is 1.

The seconds of initialisation are the sum over tasks of `initialisation.seconds`: features,
statistics, the choice of lambda, the solve and the calibration, without reading caches. Work that
heads trained side by side share is counted in full for each head that needs it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import polars as pl

GAIN = "gain_equal_level"
GAINS = (GAIN, f"{GAIN}_bounded", f"{GAIN}_below")
SHARE = 0.95
"""Share of the random run's best accuracy at which a task counts as learnt."""
NO_TEST_IMAGE = "there is no test image of the new classes"
NO_STEP = "there is no evaluation after the start"
NOTHING_LEARNT = "random's best accuracy on the new classes is 0 %"


def gain(run: pl.DataFrame, random: pl.DataFrame) -> pl.DataFrame:
    """Compare a run with the random run of the same stream, task by task.

    Both tables contain task, iteration and acc_new, one row per evaluation point.

    Returns:
        One row per task: `reason`, why random rows set no level (else null), `target`, the level in
        percent, the iterations `reached_at` and `random_reached_at` (0: before the first step), and
        the gain (null if the run never reaches the level), whether it is a lower bound
        (`_bounded`) and its upper bound where the grid of evaluations decides (`_below`).
    """
    accuracy, iteration, first = pl.col("acc_new"), pl.col("iteration"), pl.col("first")
    reason = (
        pl.when(pl.col("best").is_null())
        .then(pl.lit(NO_TEST_IMAGE))
        # Before the check of the accuracy: untrained random rows are expected to be at 0 %.
        .when(first.is_null())
        .then(pl.lit(NO_STEP))
        .when(pl.col("best") == 0)
        .then(pl.lit(NOTHING_LEARNT))
    )
    found = random.group_by("task").agg(
        best=accuracy.max(), first=iteration.filter(iteration > 0).min()
    )
    found = found.with_columns(reason=reason.otherwise(None)).with_columns(
        target=pl.when(pl.col("reason").is_null()).then(SHARE * pl.col("best"))
    )
    for name, curve in (("reached_at", run), ("random_reached_at", random)):
        # Percentages of counts are not exact: 0.95 * best must not miss an equal value by rounding.
        levels = curve.join(found.select("task", "target"), on="task")
        above = levels.filter(accuracy >= pl.col("target") - 1e-9).group_by("task")
        found = found.join(above.agg(iteration.min().alias(name)), on="task", how="left")
    own, reached, of_random = pl.lit(run.equals(random)), pl.col("reached_at"), "random_reached_at"
    most = pl.max_horizontal(of_random, reached)
    decided = ~own & reached.is_not_null() & (first > 1) & (most <= first)
    ratio = pl.max_horizontal(of_random, first) / pl.max_horizontal(reached, first)
    found = found.with_columns(
        pl.when(reached.is_not_null() & ~decided).then(ratio).alias(GAIN),
        (~decided & (reached < pl.min_horizontal(first, of_random))).alias(f"{GAIN}_bounded"),
        pl.when(decided).then(first).alias(f"{GAIN}_below"),
    )
    return found.drop("best", "first").sort("task")


def mean_gain(found: pl.DataFrame | None) -> dict[str, Any]:
    """Return means over the tasks with a level, and numbers of tasks with a bound.

    `gain_equal_level_below` is the largest upper bound. All values are None without a random run.
    """
    if found is None:
        return dict.fromkeys([*GAINS, "gain_tasks_reached", "gain_tasks"])
    known = found.filter(pl.col("reason").is_null())
    means: dict[str, Any] = known.select(
        pl.col(GAIN).mean(),
        pl.col(f"{GAIN}_bounded").sum(),
        pl.col(f"{GAIN}_below").max(),
        gain_tasks_reached=pl.col("reached_at").count(),
        gain_tasks=pl.len(),
    ).row(0, named=True)
    return means


def initialisation_seconds(tasks: Sequence[Mapping[str, Any]]) -> float | None:
    """Return the seconds of initialisation over all tasks of run.json."""
    found = [(task.get("initialisation") or {}).get("seconds") for task in tasks]
    known = [seconds for seconds in found if seconds is not None]
    return float(sum(known)) if known and len(known) == len(found) else None

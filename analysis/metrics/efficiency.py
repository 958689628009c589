"""The efficiency gain: how many times faster a run learns a new task than the random run.

The random run is the run with random rows. For each task, let B be the best new-task accuracy of
the random run:

    gain = I_r / I_d,    I_d = iterations that the run needs to reach 0.95 B

The paper's appendix calls I_r "the number of iterations used by random initialization", without the
level to reach. This module computes two readings:

    equal-level   I_r = iterations that the random run needs to reach 0.95 B
    random-best   I_r = iterations that the random run needs to reach B

With equal-level, the gain of the random run itself is exactly 1. With random-best it is above 1 if
the random run reaches 0.95 B before B, because its level is higher than the level of other runs.

Iterations are known only at evaluation points: "reached at 50" means between the previous point and
50. If a run is above the level *before* its first step (I_d = 0), the first evaluation point after
the step counts instead. So the gain is finite and at most I_r over this point, and does not depend
on whether the point before training was evaluated. The same rule applies to I_r. If several points
are equally good, the first of them is the best point of the random run.

If both runs are above their levels at the first evaluation after the start, say at 50, the grid of
evaluations decides: the gain is between 1/50 and 50, and the task has only this upper bound. The
gain of the random run itself is 1.

The cost of learning the tasks is the spike of the training loss, and seconds of initialisation.

New rows often start with a high loss, which training reduces. Let l(i) be the loss of the batch
before update i = 0 ... n - 1 of a task, and `settled` the mean of the last max(1, n // 10) losses:

    area    sum over i of max(0, l(i) - settled)    in loss x iterations
    height  max over i of l(i) - settled

`l` is the loss of the whole batch (`loss` of the steps), without weight decay and the terms of a
method, as in the paper's Figure 1. Old and new images both contribute to the spike, because old
images are classified as new classes. If the loss of a run does not settle within the task, the area
is too small, so read it next to `loss_new`.

A task without an update, or with a loss that is not finite, has neither value. The value of a run
is the mean over its tasks; if a task has no value, the run has no value, so that means of different
runs are over the same tasks. The definition is ours.

The seconds of initialisation are the sum over tasks of `initialisation.seconds`: features,
statistics, the choice of lambda, the solve and the calibration, without reading caches. Work that
heads trained side by side share is counted in full for each head that needs it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import polars as pl

READINGS = {"gain_equal_level": "random_reached_at", "gain_random_best": "random_best_at"}
"""The gain by each reading, and I_r."""
GAINS = [f"{name}{of}" for name in READINGS for of in ("", "_bounded", "_below")]
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
        percent, the iterations `reached_at`, `random_reached_at` and `random_best_at` (0: before
        the first step), and for each reading the gain (null if the run never reaches the level),
        whether it is a lower bound (`NAME_bounded`) and its upper bound where the grid of
        evaluations decides (`NAME_below`).
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
        best=accuracy.max(),
        first=iteration.filter(iteration > 0).min(),
        random_best_at=iteration.filter(accuracy == accuracy.max()).min(),
    )
    found = found.with_columns(reason=reason.otherwise(None)).with_columns(
        target=pl.when(pl.col("reason").is_null()).then(SHARE * pl.col("best"))
    )
    for name, curve in (("reached_at", run), ("random_reached_at", random)):
        # Percentages of counts are not exact: 0.95 * best must not miss an equal value by rounding.
        levels = curve.join(found.select("task", "target"), on="task")
        above = levels.filter(accuracy >= pl.col("target") - 1e-9).group_by("task")
        found = found.join(above.agg(iteration.min().alias(name)), on="task", how="left")
    own, reached = pl.lit(run.equals(random)), pl.col("reached_at")
    for name, column in READINGS.items():
        most = pl.max_horizontal(column, reached)
        decided = ~own & reached.is_not_null() & (first > 1) & (most <= first)
        ratio = pl.max_horizontal(column, first) / pl.max_horizontal(reached, first)
        found = found.with_columns(
            pl.when(reached.is_not_null() & ~decided).then(ratio).alias(name),
            (~decided & (reached < pl.min_horizontal(first, column))).alias(f"{name}_bounded"),
            pl.when(decided).then(first).alias(f"{name}_below"),
        )
    return found.drop("best", "first").sort("task")


def mean_gain(found: pl.DataFrame | None) -> dict[str, Any]:
    """Return means over the tasks with a level, and numbers of tasks with a bound.

    `NAME_below` is the largest upper bound. All values are None without a random run.
    """
    if found is None:
        return dict.fromkeys([*GAINS, "gain_tasks_reached", "gain_tasks"])
    known = found.filter(pl.col("reason").is_null())
    means: dict[str, Any] = known.select(
        pl.col(*READINGS).mean(),
        pl.col(*(f"{name}_bounded" for name in READINGS)).sum(),
        pl.col(*(f"{name}_below" for name in READINGS)).max(),
        gain_tasks_reached=pl.col("reached_at").count(),
        gain_tasks=pl.len(),
    ).row(0, named=True)
    return means


SETTLED_SHARE = 10
"""The last 1 / SETTLED_SHARE of the steps of a task give its settled loss."""


def spikes(steps: pl.DataFrame) -> pl.DataFrame:
    """Return `spike_area` and `spike_height` of each task from the steps of a record."""
    # float64: a sum over 10,000 steps in float32 loses digits. A missing loss is no number.
    loss = pl.col("loss").cast(pl.Float64).fill_null(float("nan"))
    last = pl.max_horizontal(1, pl.len() // SETTLED_SHARE)
    above = loss - loss.tail(last).mean()
    known = loss.is_finite().all()
    return (
        steps.sort("task", "iteration")
        .group_by("task")
        .agg(
            spike_area=pl.when(known).then(above.clip(lower_bound=0).sum()),
            spike_height=pl.when(known).then(above.max()),
        )
    )


def initialisation_seconds(tasks: Sequence[Mapping[str, Any]]) -> float | None:
    """Return the seconds of initialisation over all tasks of run.json."""
    found = [(task.get("initialisation") or {}).get("seconds") for task in tasks]
    known = [seconds for seconds in found if seconds is not None]
    return float(sum(known)) if known and len(known) == len(found) else None

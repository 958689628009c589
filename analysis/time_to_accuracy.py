"""Iterations and seconds until a run has learnt a new task to a level.

The reference of a task is B, the best new-task accuracy of the random run in it, as for the
efficiency gain; the levels are 90, 95 and 99 % of B. Reported are, at the first evaluation at or
above a level:

    iterations   as recorded: 0 where the rows are above the level before the first update. The
                 guard for 0 is for ratios, and there is none here
    seconds      of the run since the last evaluation of the task before (or since its start, in
                 the first task): the initialisation of this task, its updates, and its evaluations
                 up to this one included

A level that is never reached has neither. A task in which random sets no level (`NoLevel`) has
none for any run. The time is the run's own: where heads are trained side by side, a head has its
own initialisation and an equal share of the updates and evaluations of all; compare the seconds
of heads that were trained in one call. What is no part of a run's time (reading, diagnosis,
probes) is not in it. What a method of `clinit train-top` does at the end of a task (the Fisher
information of EWC) comes after its last evaluation, and so counts in the next task.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import polars as pl

from clinit.analysis.efficiency import NoLevel, best_of, first_at

LEVELS = (90, 95, 99)
"""Percent of random's best accuracy on the new task."""


@dataclass(frozen=True, slots=True)
class Reached:
    """When a level was reached in a task."""

    iterations: int
    seconds: float


TaskTimes = Mapping[int, Reached | None]
"""By level; None where it is never reached."""


@dataclass(frozen=True, slots=True)
class MeanTime:
    """When a level is reached, over tasks."""

    iterations: float | None
    """Mean over the tasks that reach it; None where none does."""
    seconds: float | None
    share: float | None
    """Share of the tasks with a level that reach it; None where no task has one."""

    @classmethod
    def of(cls, tasks: Sequence[Reached | None]) -> MeanTime:
        """Average over tasks that have a level."""
        found = [reached for reached in tasks if reached is not None]
        if not found:
            return cls(None, None, 0.0 if tasks else None)
        return cls(
            sum(reached.iterations for reached in found) / len(found),
            sum(reached.seconds for reached in found) / len(found),
            len(found) / len(tasks),
        )


def times_to_levels(run: pl.DataFrame, random: pl.DataFrame) -> dict[int, TaskTimes]:
    """Return when a run reaches each level, by task; tasks in which random sets none left out.

    Both hold task, iteration and acc_new, one row per evaluation; the run elapsed_s too, its
    time up to each evaluation.
    """
    times: dict[int, TaskTimes] = {}
    for (task,), curve in random.sort("task", "iteration").group_by("task", maintain_order=True):
        assert isinstance(task, int)
        best = best_of(curve)
        if isinstance(best, NoLevel):
            continue
        mine = run.filter(pl.col("task") == task).sort("iteration")
        begins = run.filter(pl.col("task") < task)["elapsed_s"].max() or 0.0
        assert isinstance(begins, float)
        times[task] = {level: _reached(mine, level / 100 * best, begins) for level in LEVELS}
    return times


def mean_times(tasks: Mapping[int, TaskTimes]) -> dict[int, MeanTime]:
    """Return the mean time to each level, by level."""
    return {level: MeanTime.of([times[level] for times in tasks.values()]) for level in LEVELS}


def _reached(curve: pl.DataFrame, accuracy: float, begins: float) -> Reached | None:
    iteration = first_at(curve, accuracy)
    if iteration is None:
        return None
    elapsed = curve.filter(pl.col("iteration") == iteration)["elapsed_s"].item()
    return Reached(iteration, elapsed - begins)

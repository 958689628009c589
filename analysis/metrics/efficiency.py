"""The efficiency gain: how much sooner than the random run another run learns a new task.

For each task, with B the best new-task accuracy of the random run:

    gain = I_r / I_d,    I_d = iterations the run needs to reach 0.95 B

The paper's appendix calls I_r "the number of iterations used by random initialization" and does
not say to reach what. There are two readings here:

    equal-level   I_r = iterations random itself needs to reach 0.95 B
    random-best   I_r = iterations random needs to reach B

Random against itself has a gain of exactly 1 at equal level. By the other reading it has one of
its own wherever it is at 0.95 B before it is at B: the bar is lower for the run than for random.

Iterations are known on the grid of evaluation points, so "reached at 50" means "between
the point before and 50". A run that is over the level *before* its first step (I_d = 0) is
counted at the first evaluation point after it: the gain stays finite, is at most I_r over that
point, and does not depend on whether the point before training is looked at. The same holds for
random's I_r. The first of equally good points counts as random's best.

Time to accuracy has the same reference: iterations as recorded (0 where the rows are above the
level before the first update) and seconds at the first evaluation at or above 90, 95 and 99 % of B.
Seconds are counted since the last evaluation of the task before (or since the start of the run):
the initialisation of this task, its updates, and its evaluations up to this one included. A level
that is never reached has neither, nor has a task in which random sets no level (`NoLevel`). The
time is the run's own: where heads are trained side by side, a head has its own initialisation and
an equal share of the updates and evaluations of all; compare the seconds of heads that were trained
in one call. What is no part of a run's time (reading, diagnosis, probes) is not in it. What a
method of `clinit train-top` does at the end of a task (the Fisher information of EWC) comes after
its last evaluation, and so counts in the next task.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, Literal

import polars as pl

from clinit.headtrain.record.info import settings_of
from clinit.headtrain.setting import fields_of
from clinit.headtrain.study.parts import Start
from clinit.headtrain.study.rules import BUFFER, PLACES

Reading = Literal["equal-level", "random-best"]
READINGS: tuple[Reading, ...] = ("equal-level", "random-best")
SHARE = 0.95
"""The share of random's best accuracy that counts as having learnt the task."""

INIT_SETTINGS = frozenset(fields_of(Start)) - {"head_width"}
"""What tells the runs of one comparison apart."""
BUFFER_SETTINGS = frozenset(BUFFER)
"""The same where training sees new rows alone: what is kept is for initialisation."""
PLACE_SETTINGS = frozenset({"base", "new", "out", "workers", "threads", *PLACES})
"""Where a run reads, writes and computes: not part of what is compared."""


class NoLevel(Enum):
    """Why a task has no level that a run could reach sooner or later than random."""

    NO_TEST_IMAGE = "there is no test image of the new classes"
    NO_STEP = "there is no evaluation after the start"
    NOTHING_LEARNT = "random's best accuracy on the new classes is 0 %"


@dataclass(frozen=True, slots=True)
class TaskGain:
    """The efficiency gain in one task; iterations as recorded, before the guard for 0."""

    task: int
    target: float
    """The new-task accuracy to reach, in percent."""
    reached: int | None
    """I_d; None when the run never gets there."""
    random_reached: int
    """I_r at equal level."""
    random_best: int
    """I_r to random's best."""
    first: int
    """The first evaluation point after the start."""

    def value(self, reading: Reading) -> float | None:
        """Return I_r / I_d; None when the level is never reached."""
        if self.reached is None:
            return None
        random = self.random_reached if reading == "equal-level" else self.random_best
        return max(random, self.first) / max(self.reached, self.first)

    def is_bounded(self, reading: Reading) -> bool:
        """Return whether the gain is at least its value: the run is there before its first step."""
        random = self.random_reached if reading == "equal-level" else self.random_best
        return self.reached is not None and self.reached < min(self.first, random)


@dataclass(frozen=True, slots=True)
class Gain:
    """The efficiency gain of a run over its tasks."""

    tasks: tuple[TaskGain, ...]
    left_out: tuple[tuple[int, NoLevel], ...] = ()
    """The tasks without a level to reach, with the reason."""

    @property
    def reached(self) -> int:
        """Number of tasks in which the run gets to the level."""
        return sum(task.reached is not None for task in self.tasks)

    @property
    def complete(self) -> bool:
        """Whether the run gets to the level in every task."""
        return self.reached == len(self.tasks)

    def bounded(self, reading: Reading) -> int:
        """Return the number of tasks whose gain is at least its value."""
        return sum(task.is_bounded(reading) for task in self.tasks)

    def mean(self, reading: Reading) -> float | None:
        """Return the mean over the tasks in which the level is reached; None without any."""
        values = [value for task in self.tasks if (value := task.value(reading)) is not None]
        return sum(values) / len(values) if values else None


def gain(run: pl.DataFrame, random: pl.DataFrame) -> Gain:
    """Compare a run with the random run of the same stream.

    Both hold task, iteration and acc_new, one row per evaluation point. Tasks without test
    images, without an evaluation after the start, and tasks in which the random run learns
    nothing (best accuracy 0) have no level to reach and do not count.
    """
    tasks: list[TaskGain] = []
    left_out: list[tuple[int, NoLevel]] = []
    for (task,), curve in random.sort("task", "iteration").group_by("task", maintain_order=True):
        mine = run.filter(pl.col("task") == task).sort("iteration")
        assert isinstance(task, int)
        compared = _task_gain(task, mine, curve)
        if isinstance(compared, NoLevel):
            left_out.append((task, compared))
        else:
            tasks.append(compared)
    return Gain(tuple(tasks), tuple(left_out))


def value_name(reading: Reading) -> str:
    """Return the name of the gain by this reading in the rows of a report."""
    return f"gain_{reading.replace('-', '_')}"


def bounded_name(reading: Reading) -> str:
    """Return the name, in the rows of a report, of how many tasks bound the gain from below."""
    return f"{value_name(reading)}_bounded"


def comparison_key(info: Mapping[str, Any]) -> str:
    """Return what runs must share to be compared: data, base head, stream and training."""
    settings = settings_of(info)
    left_out = INIT_SETTINGS | PLACE_SETTINGS
    if settings.get("method") in ("naive", "ewc"):
        left_out |= BUFFER_SETTINGS
    config = {name: value for name, value in settings.items() if name not in left_out}
    head = (info.get("head") or {}).get("digest")
    return json.dumps([config, data_of(info), head], sort_keys=True, default=str)


def data_of(info: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return what is known about base and new data, but for where they lie."""
    sides: list[Mapping[str, Any]] = [info.get(side) or {} for side in ("base", "new")]
    return [{name: value for name, value in side.items() if name != "path"} for side in sides]


def best_of(random: pl.DataFrame) -> float | NoLevel:
    """Return the best new-task accuracy of the random run in a task, or why it sets no level."""
    best = random["acc_new"].max()
    if not isinstance(best, float):
        return NoLevel.NO_TEST_IMAGE
    # Before the check of the accuracy: untrained random rows are expected to be at 0 %.
    if _first_after_start(random) is None:
        return NoLevel.NO_STEP
    return best or NoLevel.NOTHING_LEARNT


def first_at(curve: pl.DataFrame, accuracy: float) -> int | None:
    """Return the first evaluation at or above an accuracy on the new task; None without one."""
    # Percentages of counts are not exact: 0.95 * best must not miss an equal value by rounding.
    iteration = curve.filter(pl.col("acc_new") >= accuracy - 1e-9)["iteration"].min()
    assert iteration is None or isinstance(iteration, int)
    return iteration


def _task_gain(task: int, run: pl.DataFrame, random: pl.DataFrame) -> TaskGain | NoLevel:
    best = best_of(random)
    if isinstance(best, NoLevel):
        return best
    target = SHARE * best
    random_reached, random_best = first_at(random, target), first_at(random, best)
    later = _first_after_start(random)
    assert random_reached is not None
    assert random_best is not None
    assert later is not None
    return TaskGain(task, target, first_at(run, target), random_reached, random_best, later)


def _first_after_start(curve: pl.DataFrame) -> int | None:
    iteration = curve.filter(pl.col("iteration") > 0)["iteration"].min()
    assert iteration is None or isinstance(iteration, int)
    return iteration


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

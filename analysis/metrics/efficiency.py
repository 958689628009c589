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
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, Literal

import polars as pl

from clinit.headtrain.heads.start.settings import Start
from clinit.headtrain.protocol.record.info import settings_of
from clinit.headtrain.protocol.study.rules import BUFFER, PLACES
from clinit.setting import fields_of

Reading = Literal["equal-level", "random-best"]
READINGS: tuple[Reading, ...] = ("equal-level", "random-best")
SHARE = 0.95
"""Share of the random run's best accuracy at which a task counts as learnt."""

INIT_SETTINGS = frozenset(fields_of(Start)) - {"head_width"}
"""Settings in which comparable runs may differ."""
BUFFER_SETTINGS = frozenset(BUFFER)
"""Further such settings if only the initialisation uses the buffer, and training only new rows."""
PLACE_SETTINGS = frozenset({"base", "new", "out", "workers", "threads", *PLACES})
"""Paths and devices of a run, which do not affect comparisons."""


class NoLevel(Enum):
    """Why the random run sets no level in a task."""

    NO_TEST_IMAGE = "there is no test image of the new classes"
    NO_STEP = "there is no evaluation after the start"
    NOTHING_LEARNT = "random's best accuracy on the new classes is 0 %"


@dataclass(frozen=True, slots=True)
class TaskGain:
    """The efficiency gain in one task, with iterations as recorded (0: before the first step)."""

    task: int
    target: float
    """The new-task accuracy to reach, in percent."""
    reached: int | None
    """I_d; None if the run never reaches the level."""
    random_reached: int
    """I_r at equal level."""
    random_best: int
    """I_r to the best accuracy of the random run."""
    first: int
    """The first evaluation point after the start."""
    is_random: bool = False
    """Whether the run is the random run."""

    def value(self, reading: Reading) -> float | None:
        """Return I_r / I_d; None if the run never reaches the level, or the grid decides."""
        if self.reached is None or self.below(reading) is not None:
            return None
        return max(self._random(reading), self.first) / max(self.reached, self.first)

    def below(self, reading: Reading) -> int | None:
        """Return the upper bound of the gain if the grid of evaluations decides; else None."""
        if self.is_random or self.reached is None or self.first == 1:
            return None
        return self.first if max(self.reached, self._random(reading)) <= self.first else None

    def is_bounded(self, reading: Reading) -> bool:
        """Return whether the gain is a lower bound: the run reached the level before training."""
        if self.reached is None or self.below(reading) is not None:
            return False
        return self.reached < min(self.first, self._random(reading))

    def _random(self, reading: Reading) -> int:
        return self.random_reached if reading == "equal-level" else self.random_best


@dataclass(frozen=True, slots=True)
class Gain:
    """The efficiency gain of a run over its tasks."""

    tasks: tuple[TaskGain, ...]
    left_out: tuple[tuple[int, NoLevel], ...] = ()
    """The tasks without a level to reach, with the reason."""

    @property
    def reached(self) -> int:
        """Number of tasks in which the run reaches the level."""
        return sum(task.reached is not None for task in self.tasks)

    def below(self, reading: Reading) -> int | None:
        """Return the largest upper bound of tasks in which the grid of evaluations decides."""
        found = [bound for task in self.tasks if (bound := task.below(reading)) is not None]
        return max(found, default=None)

    def bounded(self, reading: Reading) -> int:
        """Return the number of tasks whose gain is a lower bound."""
        return sum(task.is_bounded(reading) for task in self.tasks)

    def mean(self, reading: Reading) -> float | None:
        """Return the mean over the tasks in which the level is reached; None without such tasks."""
        values = [value for task in self.tasks if (value := task.value(reading)) is not None]
        return sum(values) / len(values) if values else None


def gain(run: pl.DataFrame, random: pl.DataFrame) -> Gain:
    """Compare a run with the random run of the same stream.

    Both tables contain task, iteration and acc_new, one row per evaluation point. The random run
    sets no level in tasks without test images, without an evaluation after the start, or with a
    best accuracy of 0; these tasks do not count.
    """
    tasks: list[TaskGain] = []
    left_out: list[tuple[int, NoLevel]] = []
    mine_by_task = run.sort("iteration").partition_by("task", as_dict=True)
    for (task,), curve in random.sort("task", "iteration").group_by("task", maintain_order=True):
        assert isinstance(task, int)
        mine = mine_by_task.get((task,), run.clear())
        if isinstance(best := best_of(curve), NoLevel):
            left_out.append((task, best))
            continue
        target = SHARE * best
        equal, top, first = first_at(curve, target), first_at(curve, best), _first_step(curve)
        assert equal is not None
        assert top is not None
        assert first is not None
        reached = first_at(mine, target)
        tasks.append(TaskGain(task, target, reached, equal, top, first, mine.equals(curve)))
    return Gain(tuple(tasks), tuple(left_out))


def value_name(reading: Reading) -> str:
    """Return the name of the gain by this reading in the rows of a report."""
    return f"gain_{reading.replace('-', '_')}"


def bounded_name(reading: Reading) -> str:
    """Return the name of the number of tasks with a lower bound in the rows of a report."""
    return f"{value_name(reading)}_bounded"


def below_name(reading: Reading) -> str:
    """Return the name of the upper bound of the gain in the rows of a report."""
    return f"{value_name(reading)}_below"


def comparison_key(info: Mapping[str, Any]) -> str:
    """Return the facts that comparable runs share: data, base head, stream and training."""
    settings = settings_of(info)
    left_out = INIT_SETTINGS | PLACE_SETTINGS
    if settings.get("method") in ("naive", "ewc"):
        left_out |= BUFFER_SETTINGS
    config = {name: value for name, value in settings.items() if name not in left_out}
    head = (info.get("head") or {}).get("digest")
    return json.dumps([config, data_of(info), head], sort_keys=True, default=str)


def data_of(info: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the facts about base and new data, without their paths."""
    sides: list[Mapping[str, Any]] = [info.get(side) or {} for side in ("base", "new")]
    return [{name: value for name, value in side.items() if name != "path"} for side in sides]


def best_of(random: pl.DataFrame) -> float | NoLevel:
    """Return the best new-task accuracy of the random run in a task, or why there is no level."""
    best = random["acc_new"].max()
    if not isinstance(best, float):
        return NoLevel.NO_TEST_IMAGE
    # Before the check of the accuracy: untrained random rows are expected to be at 0 %.
    if _first_step(random) is None:
        return NoLevel.NO_STEP
    return best or NoLevel.NOTHING_LEARNT


def first_at(curve: pl.DataFrame, accuracy: float) -> int | None:
    """Return the first evaluation at or above an accuracy on the new task, or None."""
    # Percentages of counts are not exact: 0.95 * best must not miss an equal value by rounding.
    iteration = curve.filter(pl.col("acc_new") >= accuracy - 1e-9)["iteration"].min()
    assert iteration is None or isinstance(iteration, int)
    return iteration


def _first_step(curve: pl.DataFrame) -> int | None:
    iteration = curve.filter(pl.col("iteration") > 0)["iteration"].min()
    assert iteration is None or isinstance(iteration, int)
    return iteration

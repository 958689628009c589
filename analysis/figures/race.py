"""Runs that race random rows to a level: the values of the figure `efficiency`.

Levels belong to single runs, so that one seed races: the first of each start.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from clinit.analysis.efficiency import SHARE, NoLevel, TaskGain
from clinit.analysis.figures.line import Line, lines_of
from clinit.analysis.figures.starts import Start, seed_of, starts_of
from clinit.analysis.run_summary import RunSummary
from clinit.errors import RecordError


@dataclass(frozen=True, slots=True, eq=False)
class Runner:
    """A start in a race."""

    start: Start
    line: Line
    gain: TaskGain

    @property
    def result(self) -> str:
        """When it reaches the level, and the gain by both readings: `20, ×1.5, ×4.5`."""
        if self.gain.reached is None:
            return "never"
        equal, best = self.gain.value("equal-level"), self.gain.value("random-best")
        return f"{self.gain.reached}, ×{equal:.3g}, ×{best:.3g}"


@dataclass(frozen=True, slots=True, eq=False)
class Race:
    """Comparable runs of one seed in the first task that has a level to reach."""

    task: int
    words: str
    """Task and seed."""
    runners: tuple[Runner, ...]

    @property
    def target(self) -> float:
        """The accuracy to reach, in percent."""
        return self.runners[0].gain.target

    @property
    def best(self) -> float:
        """Random's best accuracy, in percent."""
        return self.target / SHARE

    @property
    def of_random(self) -> TaskGain:
        """When random reaches both levels; the same in each comparison with it."""
        return self.runners[0].gain


def races(runs: Sequence[RunSummary]) -> list[Race]:
    """Return a race for each group of comparable runs with a random run.

    Raises:
        RecordError: If there is none, or no task has a level to reach.
    """
    starts = starts_of(runs)
    groups: dict[str, list[Start]] = {}
    for start in starts:
        if start.first.gain is not None:
            groups.setdefault(start.first.key, []).append(start)
    found = [race for group in groups.values() if (race := _race(group)) is not None]
    if not found:
        raise _no_race(starts)
    return found


def _race(group: Sequence[Start]) -> Race | None:
    gains = [
        {task.task: task for task in start.first.gain.tasks} for start in group if start.first.gain
    ]
    tasks = sorted(set.intersection(*map(set, gains)))
    if not tasks:
        return None
    task = tasks[0]
    runners = [
        Runner(start, lines_of([start.first.points], "acc_new")[task], gain[task])
        for start, gain in zip(group, gains, strict=True)
    ]
    return Race(task, f"task {task}, {seed_of(group[0].first)}", tuple(runners))


def _no_race(starts: Sequence[Start]) -> RecordError:
    own = [start.first.gain for start in starts if start.first.gain is not None]
    if not own:
        return RecordError(
            "no start can be compared with random rows: there is no random run of the same stream"
            " and settings",
            remedy="Add `--init random` to the `clinit train-head` command, or give the record of"
            " such a run too.",
        )
    reasons = {reason for gain in own for _, reason in gain.left_out} or {NoLevel.NO_STEP}
    words = "; ".join(sorted(reason.value for reason in reasons))
    return RecordError(
        f"no task has a level that a start could reach sooner or later than random: {words}",
        remedy="Run `clinit train-head` with test images of the new classes and --iterations above"
        " 0.",
    )

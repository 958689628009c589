"""How much faster a start learns the first task than random rows: both readings of the gain.

The lines are the accuracies on the new classes. The levels are the best accuracy of the random run
and 95 % of it; `clinit.analysis.metrics.efficiency` defines the values. Because levels belong to
single runs, the figure compares the first seed of each start (a *race*).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.transforms import ScaledTranslation

from clinit.analysis.figures import style
from clinit.analysis.figures.line import Line, Start, lines_of, seed_of, shortened, starts_of
from clinit.analysis.metrics.efficiency import SHARE, NoLevel, TaskGain
from clinit.analysis.report.run import RunSummary
from clinit.errors import RecordError


@dataclass(frozen=True, slots=True, eq=False)
class Runner:
    """A start in a race."""

    start: Start
    line: Line
    gain: TaskGain

    @property
    def result(self) -> str:
        """The iteration at the level, and the gain by both readings: `20, ×1.5, ×4.5`."""
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
    def of_random(self) -> TaskGain:
        """The level, and the iterations at which the random run reaches it and its best."""
        return self.runners[0].gain

    @property
    def best(self) -> float:
        """Best accuracy of the random run, in percent."""
        return self.of_random.target / SHARE


def races(runs: Sequence[RunSummary]) -> list[Race]:
    """Return a race for each group of comparable runs with a random run.

    Raises:
        RecordError: If there is no such group, or no task has a level to reach.
    """
    groups: dict[str, list[Start]] = {}
    reasons: set[NoLevel] = set()
    for start in starts_of(runs):
        if (gain := start.first.gain) is not None:
            groups.setdefault(start.first.key, []).append(start)
            reasons |= {reason for _, reason in gain.left_out}
    found = []
    for group in groups.values():
        gains = [start.first.gain.tasks for start in group if start.first.gain]
        by_task = [{each.task: each for each in tasks} for tasks in gains]
        if not (tasks := set.intersection(*map(set, by_task))):
            continue
        task = min(tasks)
        lines = [lines_of([start.first.points], "acc_new")[task] for start in group]
        own = zip(group, lines, (each[task] for each in by_task), strict=True)
        words = f"task {task}, {seed_of(group[0].first)}"
        found.append(Race(task, words, tuple(Runner(*each) for each in own)))
    if found:
        return found
    if not groups:
        raise RecordError(
            "no start can be compared with random rows: there is no random run of the same stream"
            " and settings",
            remedy="Add `--init random` to the `clinit train-head` command, or give the record of"
            " such a run too.",
        )
    words = "; ".join(sorted(reason.value for reason in reasons or {NoLevel.NO_STEP}))
    raise RecordError(
        f"random rows set no level in any task, so starts cannot be timed: {words}",
        remedy="Run `clinit train-head` with test images of the new classes and --iterations above"
        " 0.",
    )


def figure(runs: Sequence[RunSummary]) -> Figure:
    """Return one panel per race, as wide as a column."""
    found = races(runs)
    most = max(len(race.runners) for race in found)
    figure, panels = style.panels(len(found), 2, 2.55 + 0.175 * most)
    for axes, race in zip(panels, found, strict=True):
        looks = style.looks_of([runner.start for runner in race.runners])
        _panel(axes, race, looks)
        style.name_axes(axes, f"Iterations of {race.words}", "Test accuracy, new classes (%)")
        _legend(figure, axes, race, looks)
    return figure


def _panel(axes: Axes, race: Race, looks: Sequence[style.Look]) -> None:
    random = race.of_random
    last = max(1.0, *(float(runner.line.at[-1]) for runner in race.runners))
    grey: dict[str, Any] = {"color": style.GREY, "linewidth": 0.8, "zorder": 1}
    axes.axhline(random.target, linestyle="--", **grey)
    axes.axhline(race.best, linestyle=":", **grey)
    for runner, look in zip(race.runners, looks, strict=True):
        style.draw_line(axes, runner.line, look, (0, last))
        for at in (runner.line.at == runner.gain.reached).nonzero()[0]:
            ring: dict[str, Any] = {"markerfacecolor": "none", "markeredgecolor": look.colour}
            axes.plot(runner.line.at[at], runner.line.mean[at], "o", ms=6, clip_on=False, **ring)
    axes.set_xlim(0, last)
    axes.set_ylim(0, 104)
    axes.set_yticks(range(0, 101, 20))
    right: dict[str, Any] = {"xycoords": axes.get_yaxis_transform()}
    style.remark(axes, "random's\nbest", (1, race.best), xytext=(3, -2), va="bottom", **right)
    level = f"{100 * SHARE:g} % of it"
    style.remark(axes, level, (1, random.target), xytext=(3, 2), va="top", **right)
    axes.vlines(random.random_reached, 0, random.target, **grey)
    axes.vlines(random.random_best, 0, race.best, **grey)


def _legend(figure: Figure, axes: Axes, race: Race, looks: Sequence[style.Look]) -> None:
    box = axes.legend(
        style.line_handles(looks),
        [
            f"{shortened(runner.start.name, 40 - len(runner.result))}: {runner.result}"
            for runner in race.runners
        ],
        loc="upper left",
        bbox_to_anchor=(0, 0),
        bbox_transform=axes.transAxes + ScaledTranslation(-0.42, -0.4, figure.dpi_scale_trans),
        frameon=False,
        fontsize=style.SMALL + 0.5,
        handlelength=2.4,
        borderaxespad=0,
        labelspacing=0.25,
        title=f"start: $I_d$, gain at equal level ($I_r$ {race.of_random.random_reached}),"
        f" at random's best ($I_r$ {race.of_random.random_best})",
        title_fontsize=style.SMALL + 0.5,
        alignment="left",
    )
    style.plain_letters(box)

"""How much sooner a start learns the first task than random rows do: both readings of the gain.

The lines are the accuracies on the new classes. The levels are 95 % of random's best and random's
best; `clinit.analysis.metrics.efficiency` defines what is read from them. Levels belong to single
runs, so that one seed races: the first of each start.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from clinit.analysis.figures.line import Line, Start, lines_of, seed_of, starts_of
from clinit.analysis.figures.style import shortened
from clinit.analysis.metrics.efficiency import SHARE, NoLevel, TaskGain
from clinit.analysis.report.run import RunSummary
from clinit.errors import RecordError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from clinit.analysis.figures.style import Look


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


def figure(runs: Sequence[RunSummary]) -> Figure:
    """Return one panel for each race, as wide as a column."""
    from clinit.analysis.figures import style

    found = races(runs)
    columns = min(len(found), 2)
    rows = -(-len(found) // columns)
    most = max(len(race.runners) for race in found)
    height = rows * (2.55 + 0.175 * most)
    result, panels = style.page(style.COLUMN if columns == 1 else style.PAGE, height, rows, columns)
    for axes, race in zip(panels, found, strict=False):
        _panel(result, axes, race)
    style.hide_rest(panels, len(found))
    return result


def _panel(figure: Figure, axes: Axes, race: Race) -> None:
    from clinit.analysis.figures import strokes, style

    looks = style.looks_of([runner.start for runner in race.runners])
    last = max(1.0, *(float(runner.line.at[-1]) for runner in race.runners))
    grey: dict[str, Any] = {"color": style.GREY, "linewidth": 0.8, "zorder": 1}
    axes.axhline(race.target, linestyle="--", **grey)
    axes.axhline(race.best, linestyle=":", **grey)
    for runner, look in zip(race.runners, looks, strict=True):
        strokes.draw_line(axes, runner.line, look, (0, last))
        if runner.gain.reached is not None:
            at = runner.line.at.tolist().index(runner.gain.reached)
            axes.plot(
                runner.line.at[at],
                runner.line.mean[at],
                "o",
                ms=6,
                markerfacecolor="none",
                markeredgecolor=look.colour,
                clip_on=False,
            )
    axes.set_xlim(0, last)
    axes.set_ylim(0, 104)
    axes.set_yticks(range(0, 101, 20))
    style.name_axes(axes, x=f"Iterations of {race.words}", y="Test accuracy, new classes (%)")
    right: dict[str, Any] = {
        "xycoords": axes.get_yaxis_transform(),
        "textcoords": "offset points",
        "fontsize": style.SMALL,
        "color": style.INK,
    }
    axes.annotate("random's\nbest", (1, race.best), xytext=(3, -2), va="bottom", **right)
    axes.annotate(f"{100 * SHARE:g} % of it", (1, race.target), xytext=(3, 2), va="top", **right)
    _random_iterations(axes, race, last)
    _race_legend(figure, axes, race, looks)


def _random_iterations(axes: Axes, race: Race, last: float) -> None:
    """Mark when random reaches both levels: I_r by both readings."""
    from clinit.analysis.figures import style

    equal, best = race.of_random.random_reached, race.of_random.random_best
    marks = [(equal, race.target, f"at equal level: {equal}")]
    if best == equal:
        marks = [(best, race.best, f"by both readings: {best}")]
    else:
        marks.append((best, race.best, f"at random's best: {best}"))
    is_close = 0 < (best - equal) / last < 0.09
    for number, (at, level, words) in enumerate(marks):
        axes.vlines(at, 0, level, color=style.GREY, linewidth=0.8, linestyle="-", zorder=1)
        is_left = at / last > 0.93 if number == len(marks) - 1 else is_close
        axes.annotate(
            f"$I_r$ {words}",
            (at, 0),
            xytext=(-2 if is_left else 2, 3),
            textcoords="offset points",
            rotation=90,
            ha="right" if is_left else "left",
            va="bottom",
            fontsize=style.SMALL,
            color=style.INK,
        )


def _race_legend(figure: Figure, axes: Axes, race: Race, looks: Sequence[Look]) -> None:
    from clinit.analysis.figures import style

    names = [
        f"{shortened(runner.start.name, 40 - len(runner.result))}: {runner.result}"
        for runner in race.runners
    ]
    box = axes.legend(
        style.line_handles(looks),
        style.numbers(names),
        loc="upper left",
        bbox_to_anchor=(0, 0),
        bbox_transform=style.corner(figure, axes, -0.42, -0.4),
        frameon=False,
        fontsize=style.SMALL + 0.5,
        handlelength=2.4,
        borderaxespad=0,
        labelspacing=0.25,
        title="start: $I_d$, gain at equal level, at random's best",
        title_fontsize=style.SMALL + 0.5,
        alignment="left",
    )
    style.rename(box, names)

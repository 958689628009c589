"""How much sooner a start learns the first task than random rows do: both readings of the gain.

The lines are the accuracies on the new classes. The levels are 95 % of random's best and random's
best; `clinit.analysis.efficiency` defines what is read from them. Levels belong to single runs, so
that one seed is drawn: the first of each start.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rich.text import Text

from clinit.analysis.efficiency import SHARE, NoLevel, TaskGain
from clinit.analysis.figures.line import Line, lines_of
from clinit.analysis.figures.shorten import shortened
from clinit.analysis.figures.starts import Start, seed_of, starts_of
from clinit.analysis.run_summary import RunSummary
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


def draw(runs: Sequence[RunSummary], width: int) -> Text:
    """Return one plot for each race, with the iterations and gains below it."""
    from clinit.analysis.figures import characters

    parts = []
    for race in races(runs):
        runners = race.runners[: len(characters.MARKERS)]
        names = [runner.start.name for runner in runners]
        last = max(float(runner.line.at[-1]) for runner in runners)
        plot = characters.Plot(
            f"Accuracy on the new classes of {race.words}, %",
            width,
            (0, last),
            x_ticks=characters.even_ticks(0, last),
            verticals=sorted({race.of_random.random_reached, race.of_random.random_best}),
            horizontals=(race.target, race.best),
            log=False,
        )
        picture = plot.of([[runner.line] for runner in runners])
        parts += [characters.legend(names, width), *([] if picture is None else [picture])]
        name_width = min(max(map(len, names)), width - 46)
        header = ("start", name_width), ("I_d", -7), ("equal level", -12), ("random's best", -14)
        parts.append(Text(characters.row(header, width), style="bold"))
        for name, runner in zip(names, runners, strict=True):
            gain = runner.gain
            reached = "never" if gain.reached is None else str(gain.reached)
            equal, best = gain.value("equal-level"), gain.value("random-best")
            cells = (
                (name, name_width),
                (reached, -7),
                ("-" if equal is None else f"×{equal:.3g}", -12),
                ("-" if best is None else f"×{best:.3g}", -14),
            )
            parts.append(Text(characters.row(cells, width)))
        parts.append(characters.foot(_explained(race), width))
    return Text("\n").join(parts)


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


def _explained(race: Race) -> str:
    own = race.of_random
    return (
        f"Horizontal lines: random's best ({race.best:.1f} %) and {100 * SHARE:g} % of it"
        f" ({race.target:.1f} %). Vertical lines: random reaches them, I_r = {own.random_reached}"
        f" at equal level, {own.random_best} at random's best. I_d: iterations of a start to the"
        f" lower level. Gain: I_r / I_d; iterations below {own.first} count as {own.first}."
    )


def _panel(figure: Figure, axes: Axes, race: Race) -> None:
    from clinit.analysis.figures import style

    looks = style.looks_of([runner.start for runner in race.runners])
    last = max(1.0, *(float(runner.line.at[-1]) for runner in race.runners))
    grey: dict[str, Any] = {"color": style.GREY, "linewidth": 0.8, "zorder": 1}
    axes.axhline(race.target, linestyle="--", **grey)
    axes.axhline(race.best, linestyle=":", **grey)
    for runner, look in zip(race.runners, looks, strict=True):
        style.draw_line(axes, runner.line, look, (0, last))
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
        [str(number) for number in range(len(names))],
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
    for text, name in zip(box.get_texts(), names, strict=True):
        text.set_parse_math(False)
        text.set_text(name)

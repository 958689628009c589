"""How much faster a start learns the first task than random rows.

The lines are means over seeds of the accuracy on the new classes, with the range of the seeds. The
level is the mean of 95 % of the random run's best accuracy, which each seed has for itself; the
legend has the gain of the first task, a mean over seeds too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import polars as pl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.transforms import ScaledTranslation

from clinit.analysis.figures import style
from clinit.analysis.figures.line import Line, StartRuns, lines_of, shortened, starts_of
from clinit.analysis.metrics.efficiency import NO_STEP, SHARE
from clinit.analysis.report.measures import MEASURES
from clinit.analysis.report.run import RunSummary
from clinit.analysis.report.settings import SeedGroup
from clinit.errors import RecordError


@dataclass(frozen=True, slots=True, eq=False)
class Runner:
    """A start in a race."""

    start: StartRuns
    line: Line
    result: str
    """The gain as in the table of the task: mean and deviation over seeds."""

    @classmethod
    def of(cls, start: StartRuns, task: int) -> Runner:
        """Return a start in a task."""
        line = lines_of([run.points for run in start.runs], "acc_new")[task]
        rows = [row for run in start.runs for row in run.row()["tasks"] if row["task"] == task]
        cell = SeedGroup(start.runs, tuple(rows)).cell(MEASURES["gain_equal_level"])
        text = "never" if cell.mean is None else f"gain {cell.text(beside=True).plain}"
        return cls(start, line, text)


@dataclass(frozen=True, slots=True, eq=False)
class Race:
    """Comparable starts in the first task that has a level to reach."""

    task: int
    target: float
    """The level in percent, mean over seeds."""
    runners: tuple[Runner, ...]


def races(runs: Sequence[RunSummary]) -> list[Race]:
    """Return a race for each group of comparable runs with a random run.

    Raises:
        RecordError: If there is no such group, or no task has a level to reach.
    """
    groups: dict[str, list[StartRuns]] = {}
    for start in starts_of(runs):
        if all(run.gain is not None for run in start.runs):
            groups.setdefault(SeedGroup.of(start.runs).comparable, []).append(start)
    if not groups:
        raise RecordError(
            "no start can be compared with random rows: there is no random run of the same stream"
            " and settings",
            remedy="Add `--init random` to the `clinit train-head` command, or give the record of"
            " such a run too.",
        )
    gains = pl.concat(run.gain for run in runs if run.gain is not None)
    found = []
    for group in groups.values():
        own = pl.concat(run.gain for start in group for run in start.runs if run.gain is not None)
        seeds = sum(len(start.runs) for start in group)
        levels = own.drop_nulls("target").group_by("task").agg(pl.col("target").mean(), n=pl.len())
        for task, target, _ in levels.filter(n=seeds).sort("task").head(1).iter_rows():
            found.append(Race(task, target, tuple(Runner.of(start, task) for start in group)))
    if found:
        return found
    words = "; ".join(sorted(gains["reason"].drop_nulls().unique()) or [NO_STEP])
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
        style.name_axes(axes, f"Iterations of task {race.task}", MEASURES["acc_new"].axis(runs))
        _legend(figure, axes, race, looks)
    return figure


def _panel(axes: Axes, race: Race, looks: Sequence[style.Look]) -> None:
    last = max(1.0, *(float(runner.line.at[-1]) for runner in race.runners))
    axes.axhline(race.target, linestyle="--", color=style.GREY, linewidth=0.8, zorder=1)
    for runner, look in zip(race.runners, looks, strict=True):
        style.draw_line(axes, runner.line, look)
    axes.set_xlim(0, last)
    axes.set_ylim(0, 104)
    axes.set_yticks(range(0, 101, 20))
    words = f"{100 * SHARE:g} % of\nrandom's best"
    place = {"xycoords": axes.get_yaxis_transform(), "xytext": (3, -2), "va": "center"}
    style.remark(axes, words, (1, race.target), **place)


def _legend(figure: Figure, axes: Axes, race: Race, looks: Sequence[style.Look]) -> None:
    seeds = len(race.runners[0].start.runs)
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
        title=f"mean over {seeds} seeds" if seeds > 1 else None,
        title_fontsize=style.SMALL + 0.5,
        alignment="left",
    )
    style.plain_letters(box)

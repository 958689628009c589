"""Loss and accuracy on the new task over iterations, drawn in characters.

All tasks share one axis of cumulative iterations. A curve stops at a task switch and starts
again behind it: the two values belong to different tasks, and a line between them would mean
nothing. Each run has a character of its own, so that the plot reads without colour.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import plotext
import polars as pl
from rich.text import Text

from clinit.analysis.run_summary import RunSummary
from clinit.analysis.settings import labels

MARKERS = ("o", "x", "+", "#", "*", "%", "@", "&")
COLOURS = ("orange+", "blue+", "green+", "magenta+", "cyan+", "red+", "orange", "blue")
_STYLES = (
    "bright_yellow",
    "bright_blue",
    "bright_green",
    "bright_magenta",
    "bright_cyan",
    "bright_red",
    "yellow",
    "blue",
)
HEIGHT = 17
LOG_RATIO = 20.0
"""A loss that spans more than this is drawn on a logarithmic scale."""


@dataclass(frozen=True, slots=True)
class Segment:
    """A curve within one task: cumulative iterations and values, finite ones only."""

    iterations: list[int]
    values: list[float]


def curves(runs: Sequence[RunSummary], width: int) -> Text:
    """Return the new-task loss above the new-task accuracy, `width` characters wide."""
    drawn = runs[: len(MARKERS)]
    parts = [_legend(drawn, labels(runs), width)]
    loss = [segments(run, "loss_new") for run in drawn]
    accuracy = [segments(run, "acc_new") for run in drawn]
    ends = switches(drawn)
    log = spans_decades(loss)
    title = "Loss on the new task" + (" (log scale)" if log else "")
    if any(loss):
        parts.append(_plot(loss, ends, width, title, log=log))
    if any(accuracy):
        parts.append(_plot(accuracy, ends, width, "Accuracy on the new task, %", log=False))
    foot = "Iterations over all tasks; a vertical line is a task switch."
    if len(drawn) < len(runs):
        foot += f" The first {len(drawn)} of {len(runs)} runs are drawn."
    return Text("\n").join([*parts, Text(foot, style="dim")])


def segments(run: RunSummary, name: str) -> list[Segment]:
    """Return the curve of a value, one segment per task."""
    starts = dict(zip(_tasks(run), [0, *_ends(run)], strict=False))
    result = []
    for task, start in starts.items():
        known = pl.col(name).is_not_null() & pl.col(name).is_finite()
        points = run.points.filter((pl.col("task") == task) & known)
        if len(points):
            result.append(Segment((points["iteration"] + start).to_list(), points[name].to_list()))
    return result


def switches(runs: Sequence[RunSummary]) -> list[int]:
    """Return the cumulative iterations at which tasks end, the last end included."""
    return sorted({end for run in runs for end in _ends(run)})


def spans_decades(curves: Sequence[Sequence[Segment]]) -> bool:
    """Return whether values are positive and differ by more than a factor of `LOG_RATIO`."""
    values = [value for curve in curves for segment in curve for value in segment.values]
    return bool(values) and min(values) > 0 and max(values) / min(values) > LOG_RATIO


def round_ticks(low: float, high: float, *, log: bool, count: int = 5) -> list[float]:
    """Return about `count` round numbers between `low` and `high`."""
    if log:
        powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
        for steps in ((1, 2, 5), (1, 3), (1,)):
            ticks = [step * 10.0**power for power in powers for step in steps]
            ticks = [tick for tick in ticks if low <= tick <= high]
            if len(ticks) <= count + 2:
                break
        return ticks
    if high <= low:
        return [low]
    rough = (high - low) / count
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= rough)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [round(index * step, 12) for index in range(first, last + 1)]


def _plot(
    curves: Sequence[Sequence[Segment]], ends: list[int], width: int, title: str, *, log: bool
) -> Text:
    figure = plotext.figure
    figure.clear()
    # A file or a pipe is not as narrow as the terminal that plotext may find behind it.
    plotext.terminal.limit(False, False)
    figure.theme("colorless")
    figure.plot_size(width, HEIGHT)
    figure.title(title)
    figure.legend(False)
    for end in ends[:-1]:
        figure.line(end, "vertical", pixel="gray")
    # plotext's own logarithmic scale does not go together with ticks of one's own.
    height = math.log10 if log else float
    for index, curve in enumerate(curves):
        marker = plotext.marker(MARKERS[index], COLOURS[index])
        for segment in curve:
            heights = [height(value) for value in segment.values]
            figure.draw(figure.signal(segment.iterations, heights, marker=marker).lines())
    values = [value for curve in curves for segment in curve for value in segment.values]
    low = min(values) if log else min(0.0, *values)
    high = max(values) if max(values) > low else low + 1.0
    ticks = round_ticks(low, high, log=log)
    vertical = figure.ruler("y", "left").lim(height(low), height(high))
    vertical.ticks([height(tick) for tick in ticks], [f"{tick:g}" for tick in ticks])
    every = math.ceil(len(ends) / max(1, width // 10))
    marks = [0, *ends][::every]
    figure.ruler("x", "lower").lim(0, max(ends[-1], 1)).ticks(marks, [str(mark) for mark in marks])
    return Text.from_ansi(figure.build().string().rstrip("\n"))


def _legend(runs: Sequence[RunSummary], names: Sequence[str], width: int) -> Text:
    lines, line = [], Text()
    for index, name in enumerate(names[: len(runs)]):
        entry = Text.assemble((MARKERS[index] * 3, _STYLES[index]), f" {name}")
        if line and len(line) + 3 + len(entry) > width:
            lines.append(line)
            line = Text()
        line = Text("   ").join([line, entry]) if line else entry
    return Text("\n").join([*lines, line])


def _tasks(run: RunSummary) -> list[int]:
    tasks: list[int] = run.points["task"].unique().sort().to_list()
    return tasks


def _ends(run: RunSummary) -> list[int]:
    lengths = run.points.group_by("task").agg(pl.col("iteration").max()).sort("task")
    ends: list[int] = lengths["iteration"].cum_sum().to_list()
    return ends

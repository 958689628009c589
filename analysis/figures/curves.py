"""Measures over iterations: by default loss and A_new.

The loss is the mean loss of the new images in each batch, before every update, so that no spike is
lost. The accuracy is measured at the evaluation points. All tasks share one axis of cumulative
iterations. A line ends at a task switch, because the values before and after the switch belong to
different tasks. The scale of the loss is linear, unless the line of one initialisation would then
look flat next to another; it is then logarithmic (`log_floor`). If heads are computed without
updates, the loss of the evaluation is drawn.

In the terminal (`draw`), losses are drawn as logarithms if the figure has a logarithmic scale.
Points that are not finite are left out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, repeat
from typing import TYPE_CHECKING

import numpy as np
import polars as pl
from rich.text import Text

from clinit.analysis.figures.line import Line, StartRuns, lines_of, log_floor, shortened, starts_of
from clinit.analysis.report.measures import MEASURES
from clinit.analysis.report.run import RunSummary

if TYPE_CHECKING:
    from matplotlib.figure import Figure

CURVES = ("loss_new", "acc_new")
MOST_MARKED = 60
"""If the accuracy lines of a start have at most this many points together, every point is marked;
otherwise, about two points per line."""


@dataclass(frozen=True, slots=True)
class Switches:
    """The ends of the tasks, on cumulative iterations."""

    ends: tuple[int, ...]
    """Ascending; the last value is the end of the longest run."""
    are_shared: bool
    """Whether all runs end their tasks at these iterations; otherwise tasks cannot be numbered."""


def ends_of(run: RunSummary) -> dict[int, int]:
    """Return the cumulative iterations at which the tasks of a run end."""
    lengths = run.points.group_by("task").agg(pl.col("iteration").max()).sort("task")
    ends: list[int] = lengths["iteration"].cum_sum().to_list()
    return dict(zip(lengths["task"].to_list(), ends, strict=True))


def switches(runs: Sequence[RunSummary]) -> Switches:
    """Return the ends of the tasks; runs without steps or with fewer tasks have no influence."""
    every = [tuple(ends_of(run).values()) for run in runs]
    longest = max(every, key=lambda ends: (ends[-1], len(ends)))
    if all(ends == longest[: len(ends)] or ends[-1] == 0 for ends in every):
        return Switches(longest, are_shared=True)
    inner = {end for ends in every for end in ends[:-1] if end}
    return Switches((*sorted(inner - {longest[-1]}), longest[-1]), are_shared=False)


def cumulative(start: StartRuns, lines: Mapping[int, Line], shared: Switches) -> list[Line]:
    """Return the lines of the tasks of a start on cumulative iterations.

    The points of a start without steps are drawn at the first iterations of the other runs' tasks.
    """
    ends = ends_of(start.runs[0])
    follows = shared.ends if shared.are_shared and not any(ends.values()) else ends.values()
    begins = dict(zip(ends, chain([0], follows, repeat(shared.ends[-1])), strict=False))
    return [line.moved(begins[task]) for task, line in sorted(lines.items())]


def figure(runs: Sequence[RunSummary], names: Sequence[str] = CURVES) -> Figure:
    """Return a panel per measure side by side, two as wide as the text of a page."""
    from clinit.analysis.figures import style

    starts, shared = starts_of(runs), switches(runs)
    looks, labels = [*style.looks_of(starts)], [start.name for start in starts]
    figure, drawn = style.panels(len(names), 2, 2.3, names=labels)
    for axes, name in zip(drawn, names, strict=True):
        style.mark_tasks(axes, shared.ends, are_numbered=shared.are_shared)
        style.name_axes(axes, "Iterations", MEASURES[name].axis(runs))
        is_loss = name == "loss_new"
        lines = [cumulative(each, measured_lines(each, name), shared) for each in starts]
        floor = log_floor(lines) if is_loss else None
        for own, look in zip(lines, looks, strict=True):
            few = sum(len(line.at) for line in own) <= MOST_MARKED
            marks = None if few and not is_loss else 2
            for line in own:
                style.draw_line(axes, line, look, marks=marks, floor=floor)
        if is_loss:
            style.scale_losses(axes, floor)
        else:
            axes.set_ylim(0, 100)
    style.legend_above(figure, labels, looks)
    return figure


def measured_lines(start: StartRuns, name: str) -> dict[int, Line]:
    """Return the lines of a measure, of losses before each update if they are known."""
    steps = [run.record.steps for run in start.runs] if name == "loss_new" else []
    evaluated = lines_of([run.points for run in start.runs], name)
    return {**evaluated, **lines_of(steps, name)} if steps else evaluated


SIGNS = "ox+#*"
"""Characters of the starts, which differ also without colour."""
HEIGHT = 17


def draw(runs: Sequence[RunSummary], width: int) -> Text:
    """Return the curves of the first starts, `width` characters wide, below their characters."""
    starts, shared = starts_of(runs), switches(runs)
    parts = [
        shortened(f"{3 * sign} {start.name}", width)
        for sign, start in zip(SIGNS, starts, strict=False)
    ]
    for name in CURVES:
        lines = [cumulative(each, measured_lines(each, name), shared) for each in starts]
        floor = log_floor(lines) if name == "loss_new" else None
        parts.append(_plot(lines, shared, width, MEASURES[name].axis(runs), floor))
    parts.append("Iterations; vertical lines: task switches.")
    if len(starts) > len(SIGNS):
        parts.append(f"The first {len(SIGNS)} of {len(starts)} starts; --html FILE has all.")
    return Text("\n").join(map(Text.from_ansi, parts))


def _plot(
    series: Sequence[Sequence[Line]], shared: Switches, width: int, title: str, floor: float | None
) -> str:
    """Return a plot of the lines; with a `floor`, of the logarithms of values raised to it."""
    import plotext

    drawn = plotext.figure
    drawn.clear()
    plotext.terminal.limit(False, False)  # the output may be a file or a pipe
    drawn.theme("colorless")
    drawn.plot_size(width, HEIGHT)
    drawn.title(shortened(title if floor is None else f"log10 of {title}", width))
    drawn.legend(False)
    for end in shared.ends[:-1]:
        drawn.line(end, "vertical", pixel="gray")
    for sign, lines in zip(SIGNS, series, strict=False):
        for line in lines:
            at, mean = (each[np.isfinite(line.mean)] for each in (line.at, line.mean))
            heights = mean if floor is None else np.log10(np.maximum(mean, floor))
            signal = drawn.signal(at.tolist(), heights.tolist(), marker=plotext.marker(sign))
            drawn.draw(signal.lines())
    return str(drawn.build().string().rstrip("\n"))

"""Measures over iterations, as a figure and for the terminal: by default loss and A_new.

The loss is the mean loss of the new images in each batch, before every update, so that no spike is
lost. The accuracy is measured at the evaluation points. All tasks share one axis of cumulative
iterations. A line ends at a task switch, because the values before and after the switch belong to
different tasks. The scale of the loss is linear, unless the line of one initialisation would then
look flat next to another; it is then logarithmic (`log_floor`). If heads are computed without
updates, the loss of the evaluation is drawn.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, repeat
from typing import TYPE_CHECKING

import plotext
import polars as pl
from rich.text import Text

from clinit.analysis.figures.line import (
    Line,
    Start,
    best_of,
    finite_values,
    lines_of,
    log_floor,
    round_ticks,
    shortened,
    starts_of,
)
from clinit.analysis.report.measures import MEASURES
from clinit.analysis.report.run import RunSummary

if TYPE_CHECKING:
    from matplotlib.figure import Figure

CURVES = ("loss_new", "acc_new")
MOST_MARKED = 60
"""If the accuracy lines of a start have at most this many points together, every point is marked;
otherwise, about two points per line."""
SIGNS = (
    ("o", "orange+", "bright_yellow"),
    ("x", "blue+", "bright_blue"),
    ("+", "green+", "bright_green"),
    ("#", "magenta+", "bright_magenta"),
    ("*", "cyan+", "bright_cyan"),
)
"""Looks of the starts in the terminal, distinct even without colour: character, colour in plotext,
colour in rich."""
HEIGHT = 17


@dataclass(frozen=True, slots=True)
class Switches:
    """The ends of the tasks, on cumulative iterations."""

    ends: tuple[int, ...]
    """Ascending; the last value is the end of the longest run."""
    are_shared: bool
    """Whether all runs end their tasks at these iterations; otherwise tasks cannot be numbered."""


def loss_lines(start: Start) -> dict[int, Line]:
    """Return the loss of new images in each batch over the steps of each task."""
    steps = lines_of([run.record.steps for run in start.runs], "loss_new")
    evaluated = lines_of([run.points for run in start.runs], "loss_new")
    return {task: steps.get(task, line) for task, line in {**steps, **evaluated}.items()}


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


def cumulative(start: Start, lines: Mapping[int, Line], shared: Switches) -> list[Line]:
    """Return the lines of the tasks of a start on cumulative iterations.

    The points of a start without steps are drawn at the first iterations of the other runs' tasks.
    """
    ends = ends_of(start.first)
    follows = shared.ends if shared.are_shared and not any(ends.values()) else ends.values()
    begins = dict(zip(ends, chain([0], follows, repeat(shared.ends[-1])), strict=False))
    return [line.moved(begins[task]) for task, line in sorted(lines.items())]


@dataclass(frozen=True, slots=True, eq=False)
class Panel:
    """The lines of each start in one measure, on cumulative iterations."""

    title: str
    is_loss: bool
    lines: list[list[Line]]
    """Losses are raised to `floor`."""
    floor: float | None
    """Lower end of a logarithmic scale of the losses; None: linear."""

    @classmethod
    def of(cls, name: str, starts: Sequence[Start], shared: Switches) -> Panel:
        """Return the panel of a measure that each evaluation has."""
        is_loss = name == "loss_new"
        points = [lines_of([run.points for run in start.runs], name) for start in starts]
        found = [loss_lines(start) for start in starts] if is_loss else points
        lines = [cumulative(start, of, shared) for start, of in zip(starts, found, strict=True)]
        floor = log_floor(lines) if is_loss else None
        raised = [[line.raised(floor) for line in each] for each in lines]
        runs = [run for start in starts for run in start.runs]
        return cls(MEASURES[name].axis(runs), is_loss, raised, floor)


def figure(runs: Sequence[RunSummary], names: Sequence[str] = CURVES) -> Figure:
    """Return panels side by side, two as wide as the text of a page."""
    from clinit.analysis.figures import style

    starts, shared = starts_of(runs), switches(runs)
    looks, labels = style.looks_of(starts), [start.name for start in starts]
    span = 0, max(shared.ends[-1], 1)
    figure, drawn = style.panels(len(names), 2, 2.3, names=labels)
    for axes, panel in zip(drawn, (Panel.of(name, starts, shared) for name in names), strict=True):
        style.mark_tasks(axes, shared.ends, are_numbered=shared.are_shared)
        style.name_axes(axes, "Iterations", panel.title)
        for lines, look in zip(panel.lines, looks, strict=True):
            few = sum(len(line.at) for line in lines) <= MOST_MARKED
            marks = None if few and not panel.is_loss else 2
            for line in lines:
                style.draw_line(axes, line, look, span, marks=marks)
        if panel.is_loss:
            style.scale_losses(axes, panel.lines, panel.floor)
        else:
            axes.set_ylim(0, 100)
    style.legend_above(figure, labels, looks)
    return figure


def draw(runs: Sequence[RunSummary], width: int) -> Text:
    """Return the loss above the accuracy, `width` characters wide."""
    starts, shared = starts_of(runs), switches(runs)
    drawn = best_of(starts, len(SIGNS))
    whose = "" if shared.are_shared else " of some runs"
    foot = [f"Iterations over all tasks; a vertical line is a task switch{whose}."]
    if len(drawn) < len(starts):
        foot.append(
            f"The {len(drawn)} of {len(starts)} settings with the best A_all; --plot FILE draws"
            " all."
        )
    if (most := max(len(start.runs) for start in starts)) > 1:
        unequal = any(len(start.runs) < most for start in starts)
        foot.append(f"Means over {'up to ' if unequal else ''}{most} seeds.")
    parts = [
        _legend([start.name for start in drawn], width),
        *(_plot(Panel.of(name, drawn, shared), shared.ends, width) for name in CURVES),
        Text("\n".join(textwrap.wrap(" ".join(foot), max(1, width))), style="dim"),
    ]
    return Text("\n").join(part for part in parts if part is not None)


def _legend(names: Sequence[str], width: int) -> Text:
    """Return the character of each name, in lines of at most `width` columns."""
    lines = [Text()]
    for (sign, _, style), name in zip(SIGNS, names, strict=False):
        entry = Text.assemble((3 * sign, style), f" {shortened(name, max(1, width - 4))}")
        if not lines[-1]:
            lines[-1] = entry
        elif lines[-1].cell_len + 3 + entry.cell_len <= width:
            lines[-1] = Text("   ").join([lines[-1], entry])
        else:
            lines.append(entry)
    return Text("\n").join(lines)


def _plot(panel: Panel, ends: Sequence[int], width: int) -> Text | None:
    """Draw lines, one character per start; None if no value is finite.

    A linear scale starts at 0.
    """
    series, is_log = panel.lines, panel.floor is not None
    if not (values := finite_values(series, bands=False)):
        return None
    title, span = panel.title + ", each step" * panel.is_loss, (0, max(ends[-1], 1))
    drawn = plotext.figure
    drawn.clear()
    # plotext would limit the width to the terminal's, even if the output is a file or a pipe.
    plotext.terminal.limit(False, False)
    drawn.theme("colorless")
    drawn.plot_size(width, HEIGHT)
    drawn.title(shortened(title + (" (log scale)" if is_log else ""), width))
    drawn.legend(False)
    for place in ends[:-1]:
        drawn.line(place, "vertical", pixel="gray")
    every = math.ceil((len(ends) + 1) * (len(str(ends[-1])) + 3) / max(1, width - 8))
    chosen = (0, *ends)[:: max(1, every)]
    drawn.ruler("x", "lower").lim(*span).ticks(chosen, [str(place) for place in chosen])
    # plotext's own logarithmic scale does not work with custom ticks.
    height = math.log10 if is_log else float
    for (sign, colour, _), lines in zip(SIGNS, series, strict=False):
        marker = plotext.marker(sign, colour)
        for piece in (piece for line in lines for piece in line.pieces()):
            seen = piece.thinned(*span, width)
            heights = [height(value) for value in seen.mean.tolist()]
            drawn.draw(drawn.signal(seen.at.tolist(), heights, marker=marker).lines())
    low = min(values) if is_log else min(0.0, *values)
    high = max(values) if max(values) > low else low + 1.0
    ticks = round_ticks(low, high, log=is_log)
    vertical = drawn.ruler("y", "left").lim(height(low), height(high))
    vertical.ticks([height(tick) for tick in ticks], [f"{tick:g}" for tick in ticks])
    return Text.from_ansi(drawn.build().string().rstrip("\n"))

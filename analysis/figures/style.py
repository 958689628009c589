"""The look of the figures on paper: sizes, colours, panels, lines and their scales.

Letters have at least 7 pt at the width of the figure: 3.3 inches are one column of a two-column
paper, 6.9 inches the whole text width.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullLocator

from clinit.analysis.figures.line import Line, Real, StartRuns, shortened

# M. Okabe, K. Ito, "Color universal design", 2008: distinct with any colour vision; its
# without yellow, which is invisible on white paper.
COLOURS = ("#d55e00", "#0072b2", "#009e73", "#cc79a7", "#56b4e9", "#e69f00", "#000000")
LINES = ("-", "--", "-.", ":")
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "<", ">", "*", "p", "h", "d", "8", "H")
SHADE, GREY, INK = "#f2f2f2", "#8c8c8c", "#333333"
COLUMN, PAGE = 3.3, 6.9
"""Widths in inches."""
SMALL, NORMAL = 7.0, 8.0
"""Sizes of letters in points."""
DPI = 300
_LETTERS_PER_INCH = 15.0


@dataclass(frozen=True, slots=True)
class Look:
    """How the line of a start is drawn."""

    colour: str
    line: str
    marker: str

    @property
    def style(self) -> dict[str, Any]:
        """Colour and line style as arguments of matplotlib."""
        return {"color": self.colour, "linestyle": self.line}


def looks_of(starts: Sequence[StartRuns]) -> Iterator[Look]:
    """Yield the look of each start: its own colour, or else the colour of its initialisation.

    Starts of one initialisation then have different strokes, until all strokes are used.
    """
    own = [start.runs[0].init for start in starts]
    inits = list(dict.fromkeys(own))
    few = len(starts) <= len(COLOURS)
    for number, init in enumerate(own):
        colour, line = number, number // len(COLOURS)
        if len(inits) <= len(COLOURS) and max(map(own.count, inits)) <= len(LINES):
            colour, line = number if few else inits.index(init), own[:number].count(init)
        stroke, marker = LINES[line % len(LINES)], MARKERS[number % len(MARKERS)]
        yield Look(COLOURS[colour % len(COLOURS)], stroke, marker)


def panels(
    count: int, most: int, height: float, *, names: Sequence[str] = ()
) -> tuple[Figure, list[Axes]]:
    """Return a figure of equal panels, row by row, as wide as a column or as the whole text.

    Args:
        count: Number of panels.
        most: Maximum number of panels in a row.
        height: Height of a row, in inches.
        names: Names in the legend above the panels.
    """
    columns = min(count, most)
    rows = -(-count // columns)
    width = COLUMN if columns == 1 else PAGE
    lines = -(-len(names) // _legend_columns(names, width)) if names else 0
    size = (width, 0.16 * lines + rows * height)
    figure = Figure(figsize=size, dpi=DPI, layout="constrained")
    drawn = figure.subplots(rows, columns, squeeze=False)
    for axes in drawn.flat:
        axes.tick_params(labelsize=SMALL, color=INK, width=0.6, length=2.5, pad=2)
        axes.spines[["top", "right"]].set_visible(False)
        axes.spines[["left", "bottom"]].set(color=INK, linewidth=0.6)
    for axes in drawn.flat[count:]:
        axes.set_axis_off()
    return figure, list(drawn.flat[:count])


def name_axes(axes: Axes, x: str, y: str) -> None:
    """Label the axes of a panel."""
    axes.set_xlabel(x, fontsize=NORMAL, labelpad=2)
    axes.set_ylabel(y, fontsize=NORMAL, labelpad=4)


def legend_above(figure: Figure, names: Sequence[str], looks: Sequence[Look]) -> None:
    """Write a legend above the panels."""
    width = figure.get_figwidth()
    most = max(8, int(width * _LETTERS_PER_INCH) - 6)
    short, ncols = [shortened(name, most) for name in names], _legend_columns(names, width)
    look = {"loc": "outside upper center", "columnspacing": 1.4, "borderaxespad": 0.2}
    legend(figure, short, looks, ncols=ncols, **look)


def legend(of: Figure | Axes, names: Sequence[str], looks: Sequence[Look], **options: Any) -> None:
    """Write a legend of lines; a $ in a name is a dollar, not mathematics."""
    handles = [Line2D([], [], linewidth=1.3, marker=k.marker, ms=3.5, **k.style) for k in looks]
    options |= {"fontsize": SMALL + 0.5, "title_fontsize": SMALL + 0.5, "handlelength": 2.4}
    for text in of.legend(handles, names, frameon=False, **options).get_texts():
        text.set_parse_math(False)


def _legend_columns(names: Sequence[str], width: float) -> int:
    letters = width * _LETTERS_PER_INCH
    longest = min(max(map(len, names)), max(8, int(letters) - 6))
    return max(1, min(len(names), int(letters // (longest + 6))))


def remark(axes: Axes, text: str, at: tuple[Real, Real], **options: Any) -> None:
    """Write text at a point of a panel, moved by `xytext` points."""
    look: dict[str, Any] = {"textcoords": "offset points", "fontsize": SMALL, "color": INK}
    axes.annotate(text, at, **look | options)


def draw_line(
    axes: Axes, line: Line, look: Look, *, marks: int | None = None, floor: float | None = None
) -> None:
    """Draw a line with its band; it is broken where a value is not finite.

    Args:
        axes: The panel.
        line: The line.
        look: Colour and stroke.
        marks: Approximate number of points with a marker; None: all points.
        floor: The lower edge of the panel; what lies below is drawn along it.
    """
    if (line.high > line.low).any():  # seeds differ
        band: dict[str, Any] = {"color": look.colour, "alpha": 0.2, "linewidth": 0}
        axes.fill_between(line.at, line.low, line.high, **band)
    every = 1 if marks is None else max(1, -(-len(line.at) // marks))
    drawn: dict[str, Any] = {"marker": look.marker, "markevery": every, "ms": 2.8, **look.style}
    mean = line.mean if floor is None else np.maximum(line.mean, floor)
    axes.plot(line.at, mean, linewidth=1.1, markeredgewidth=0, clip_on=False, **drawn)


def scale_losses(axes: Axes, floor: float | None) -> None:
    """Set a scale from 0, or a logarithmic scale from `floor`."""
    if floor is not None:
        axes.set_yscale("log")
        few = axes.get_ylim()[1] < 1e4 * floor
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if few else (1,)))
        axes.yaxis.set_major_formatter("{x:g}")
        axes.yaxis.set_minor_locator(NullLocator())
    axes.set_ylim(bottom=floor or 0)


def mark_tasks(axes: Axes, ends: Sequence[Real], *, are_numbered: bool) -> None:
    """Shade every second task and write their numbers above the panel.

    If the tasks of the runs end at different iterations, draw lines without numbers.
    """
    thousands = ends[-1] >= 20_000
    axes.set_xlim(0, max(ends[-1], 1))
    axes.xaxis.set_major_formatter(
        FuncFormatter(lambda x, _: f"{x / 1000:.10g}k" if x and thousands else f"{x:.10g}")
    )
    axes.xaxis.set_major_locator(MaxNLocator(5, integer=True))
    if not are_numbered:
        for end in ends[:-1]:
            axes.axvline(end, color=GREY, linewidth=0.5, zorder=0)
        return
    if len(ends) <= 5:
        axes.set_xticks([0, *ends])
    every = -(-len(ends) // 10)
    for task, (start, end) in enumerate(zip([0, *ends], ends, strict=False), 1):
        if task % 2 == 0:
            axes.axvspan(start, end, color=SHADE, linewidth=0, zorder=0)
        if (task - 1) % every == 0:
            name = f"task {task}" if len(ends) <= 5 else str(task)
            above: dict[str, Any] = {"xytext": (0, 2), "ha": "center", "va": "bottom"}
            at = (start + end) / 2, 1.0
            remark(axes, name, at, xycoords=axes.get_xaxis_transform(), **above)

"""The look of the figures on paper: sizes, colours, letters, legends.

Nothing is smaller than 7 pt at the width that a figure is made for: 3.3 inches are a column of a
paper of two, 6.9 inches its text width.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from matplotlib.legend import Legend
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter, MaxNLocator, NullLocator
from matplotlib.transforms import ScaledTranslation, Transform

from clinit.analysis.figures.line import Line, finite_values
from clinit.analysis.figures.scale import round_ticks, spans_decades, tick_text
from clinit.analysis.figures.shorten import shortened
from clinit.analysis.figures.starts import Start

# M. Okabe, K. Ito, "Color universal design", 2008: told apart with any colour vision; its
# yellow is left out, which nobody can see on white paper.
COLOURS = ("#d55e00", "#0072b2", "#009e73", "#cc79a7", "#56b4e9", "#e69f00", "#000000")
LINES = ("-", "--", "-.", ":")
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "<", ">", "*", "p", "h", "d", "8", "H")
SHADE = "#f2f2f2"
GREY = "#8c8c8c"
INK = "#333333"
COLUMN, PAGE = 3.3, 6.9
"""Widths in inches."""
SMALL, NORMAL = 7.0, 8.0
"""Sizes of letters in points."""
DPI = 300
MOST_COLUMNS = 900
"""Most columns into which a line is thinned: those of a panel of 3 inches at `DPI`."""
_LETTERS_PER_INCH = 15.0


@dataclass(frozen=True, slots=True)
class Look:
    """How the line of a start is drawn."""

    colour: str
    line: str
    marker: str

    @property
    def style(self) -> dict[str, Any]:
        """Colour and line style as matplotlib takes them."""
        return {"color": self.colour, "linestyle": self.line}


def looks_of(starts: Sequence[Start]) -> list[Look]:
    """Return the look of each start: one colour per initialisation if they suffice."""
    inits = list(dict.fromkeys(start.first.init for start in starts))
    variants = {
        init: [number for number, start in enumerate(starts) if start.first.init == init]
        for init in inits
    }
    if len(inits) <= len(COLOURS) and max(map(len, variants.values()), default=0) <= len(LINES):
        places = [
            (inits.index(start.first.init), variants[start.first.init].index(number))
            for number, start in enumerate(starts)
        ]
    else:
        places = [(number, number // len(COLOURS)) for number in range(len(starts))]
    return [
        Look(COLOURS[c % len(COLOURS)], LINES[s % len(LINES)], MARKERS[n % len(MARKERS)])
        for n, (c, s) in enumerate(places)
    ]


def page(
    width: float, height: float, rows: int = 1, columns: int = 1, **shared: Any
) -> tuple[Figure, list[Axes]]:
    """Return a figure and its panels, row by row; sizes in inches."""
    result = Figure(figsize=(width, height), dpi=DPI, layout="constrained")
    panels = result.subplots(rows, columns, squeeze=False, **shared)
    for axes in panels.flat:
        axes.tick_params(labelsize=SMALL, color=INK, width=0.6, length=2.5, pad=2)
        axes.spines[["top", "right"]].set_visible(False)
        axes.spines[["left", "bottom"]].set(color=INK, linewidth=0.6)
    return result, list(panels.flat)


def hide_rest(panels: Sequence[Axes], used: int) -> None:
    """Leave the panels that nothing is drawn in blank."""
    for axes in panels[used:]:
        axes.set_axis_off()


def name_axes(axes: Axes, *, x: str | None = None, y: str | None = None) -> None:
    """Write what the axes of a panel are."""
    for text, write in ((x, axes.set_xlabel), (y, axes.set_ylabel)):
        if text is not None:
            write(text, fontsize=NORMAL, labelpad=2)


def head(axes: Axes, name: str, inches: float) -> None:
    """Write the name of a panel above it, shortened to the width of the panel."""
    text = axes.set_title("", fontsize=NORMAL, loc="left", pad=4)
    text.set_parse_math(False)
    text.set_text(shortened(name, int(inches * _LETTERS_PER_INCH)))


def write(axes: Axes, x: float, y: float, text: str, **options: Any) -> None:
    """Write text from data letter by letter: a $ is a dollar."""
    axes.text(x, y, text, parse_math=False, **{"fontsize": SMALL, "color": INK} | options)


def legend_rows(names: Sequence[str], width: float) -> int:
    """Return how many rows the legend of a figure of `width` inches has."""
    return -(-len(names) // _legend_columns(_legend_names(names, width), width))


def legend(
    figure: Figure, names: Sequence[str], handles: Sequence[Any], width: float, **options: Any
) -> Legend:
    """Write a legend above the panels, whatever letters are in the names."""
    shown = _legend_names(names, width)
    result = figure.legend(
        handles,
        # Before matplotlib 3.10 a name with _ in front is left out.
        [str(number) for number in range(len(names))],
        **{
            "loc": "outside upper center",
            "ncols": _legend_columns(shown, width),
            "frameon": False,
            "fontsize": SMALL + 0.5,
            "handlelength": 2.4,
            "columnspacing": 1.4,
            "borderaxespad": 0.2,
        }
        | options,
    )
    for text, name in zip(result.get_texts(), shown, strict=True):
        text.set_parse_math(False)
        text.set_text(name)
    return result


def line_handles(looks: Sequence[Look], *, markers: bool = True) -> list[Line2D]:
    """Return the samples of lines in a legend."""
    return [
        Line2D([], [], linewidth=1.3, marker=look.marker if markers else "", ms=3.5, **look.style)
        for look in looks
    ]


def draw_line(
    axes: Axes, line: Line, look: Look, span: tuple[float, float], *, marks: int | None = None
) -> None:
    """Draw a line with its band, thinned to what can be seen.

    Args:
        axes: The panel.
        line: What is drawn.
        look: How.
        span: The ends of the horizontal axis.
        marks: About how many points have a marker; None: each.
    """
    for piece in line.pieces():
        seen = piece.thinned(*span, MOST_COLUMNS)
        if seen.has_band:
            axes.fill_between(
                seen.at, seen.low, seen.high, color=look.colour, alpha=0.2, linewidth=0
            )
        every = 1 if marks is None else max(1, -(-len(seen.at) // max(marks, 1)))
        # A task that was only evaluated before its first step is one point, not a line.
        has_marker = marks != 0 or len(seen.at) == 1
        axes.plot(
            seen.at,
            seen.mean,
            linewidth=1.1,
            marker=look.marker if has_marker else "",
            markevery=every,
            ms=2.8,
            markeredgewidth=0,
            clip_on=False,
            **look.style,
        )


def scale_height(axes: Axes, values: Sequence[float]) -> None:
    """Set a logarithmic scale with plain round ticks where values span decades, else one from 0."""
    if spans_decades(values):
        _logarithmic(axes, min(values), max(values))
    elif min(values, default=0.0) >= 0:
        axes.set_ylim(bottom=0)


def scale_losses(axes: Axes, series: Sequence[Sequence[Line]], floor: float | None) -> None:
    """Set a scale from 0, or a logarithmic one from `floor`."""
    if floor is None:
        axes.set_ylim(bottom=0)
        return
    _logarithmic(axes, floor, max(finite_values(series)))
    axes.set_ylim(bottom=floor)


def mark_tasks(axes: Axes, ends: Sequence[float]) -> None:
    """Shade every second task and write their numbers above the panel."""
    starts = [0, *ends]
    every = -(-len(ends) // 10)
    for task, (start, end) in enumerate(zip(starts, ends, strict=False), 1):
        if task % 2 == 0:
            axes.axvspan(start, end, color=SHADE, linewidth=0, zorder=0)
        if (task - 1) % every == 0:
            axes.annotate(
                f"task {task}" if len(ends) <= 5 else str(task),
                ((start + end) / 2, 1.0),
                xycoords=axes.get_xaxis_transform(),
                xytext=(0, 2),
                textcoords="offset points",
                ha="center",
                va="bottom",
                fontsize=SMALL,
                color=INK,
            )
    axes.set_xlim(0, max(ends[-1], 1))
    if len(ends) <= 5:
        axes.set_xticks(starts)
    else:
        axes.xaxis.set_major_locator(MaxNLocator(5, integer=True))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: _count(value)))


def name_bars(axes: Axes, names: Sequence[str], letters: int) -> None:
    """Write the names of lying bars, the first one on top, without marks and markup."""
    axes.set_yticks(range(len(names)))
    shown = [shortened(name, letters) for name in names]
    axes.set_yticklabels(shown, fontsize=SMALL, parse_math=False)
    axes.set_ylim(max(len(names), 1) - 0.4, -0.6)
    axes.tick_params(axis="y", length=0)


def corner(figure: Figure, axes: Axes, x: float, y: float) -> Transform:
    """Return the coordinates of a panel, moved by inches."""
    return axes.transAxes + ScaledTranslation(x, y, figure.dpi_scale_trans)


def few_ticks(axes: Axes) -> None:
    """Set few round ticks on the horizontal axis of a narrow panel."""
    axes.xaxis.set_major_locator(MaxNLocator(5))


def patch(colour: str) -> Patch:
    """Return the sample of a bar in a legend."""
    return Patch(color=colour)


def ordered_looks(count: int) -> list[Look]:
    """Return looks of things that have an order, such as tasks: from dark to light."""
    places = [0.0] if count == 1 else [0.85 * number / (count - 1) for number in range(count)]
    return [
        Look(to_hex(colormaps["viridis"](place)), LINES[n % len(LINES)], MARKERS[n % len(MARKERS)])
        for n, place in enumerate(places)
    ]


def power_ticks(axes: Axes, lines: Sequence[Line]) -> None:
    """Set ticks at powers of ten on an axis of logarithms."""
    places = np.concatenate([line.at for line in lines])
    low, high = int(np.ceil(places.min())), int(np.floor(places.max()))
    powers = range(low, high + 1, max(1, -(-(high - low) // 4)))
    axes.set_xticks(powers, [f"$10^{{{power}}}$" for power in powers])


def number_tasks(axes: Axes, tasks: Sequence[int]) -> None:
    """Set ticks at whole tasks."""
    axes.xaxis.set_major_locator(MaxNLocator(min(len(tasks), 8), integer=True, min_n_ticks=1))
    axes.set_xlim(min(tasks) - 0.3, max(tasks) + 0.3)


def is_dark(rgba: tuple[float, float, float, float]) -> bool:
    """Return whether white letters are more legible than black ones on a colour (WCAG 2)."""
    channels = np.asarray(rgba[:3])
    linear = np.where(channels <= 0.04045, channels / 12.92, ((channels + 0.055) / 1.055) ** 2.4)
    luminance = float(linear @ (0.2126, 0.7152, 0.0722))
    return 1.05 / (luminance + 0.05) > (luminance + 0.05) / 0.05


def _logarithmic(axes: Axes, low: float, high: float) -> None:
    ticks = round_ticks(low, high, log=True)
    axes.set_yscale("log")
    axes.set_yticks(ticks, [tick_text(tick) for tick in ticks])
    axes.yaxis.set_minor_locator(NullLocator())


def _count(value: float) -> str:
    return f"{value / 1000:g}k" if value >= 10_000 and value % 100 == 0 else f"{value:g}"


def _legend_names(names: Sequence[str], width: float) -> list[str]:
    most = max(8, int(width * _LETTERS_PER_INCH) - 6)
    return [shortened(name, most) for name in names]


def _legend_columns(names: Sequence[str], width: float) -> int:
    letters = width * _LETTERS_PER_INCH
    return max(1, min(len(names), int(letters // (max(map(len, names)) + 6))))

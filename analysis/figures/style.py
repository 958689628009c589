"""The look of the figures on paper: sizes and colours.

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
from matplotlib.ticker import MaxNLocator
from matplotlib.transforms import ScaledTranslation, Transform
from rich.cells import cell_len, chop_cells, set_cell_size

from clinit.analysis.figures.line import Real, Start

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
    """Return the look of each start: a colour of its own, or else that of its initialisation.

    Starts of one initialisation have different strokes too, as far as these suffice.
    """
    inits = list(dict.fromkeys(start.first.init for start in starts))
    variants = {
        init: [number for number, start in enumerate(starts) if start.first.init == init]
        for init in inits
    }
    few = len(starts) <= len(COLOURS)
    if len(inits) <= len(COLOURS) and max(map(len, variants.values()), default=0) <= len(LINES):
        places = [
            (
                number if few else inits.index(start.first.init),
                variants[start.first.init].index(number),
            )
            for number, start in enumerate(starts)
        ]
    else:
        places = [(number, number // len(COLOURS)) for number in range(len(starts))]
    return [
        Look(COLOURS[c % len(COLOURS)], LINES[s % len(LINES)], MARKERS[n % len(MARKERS)])
        for n, (c, s) in enumerate(places)
    ]


def ordered_looks(count: int) -> list[Look]:
    """Return looks of things that have an order, such as tasks: from dark to light."""
    places = [0.0] if count == 1 else [0.85 * number / (count - 1) for number in range(count)]
    return [
        Look(to_hex(colormaps["viridis"](place)), LINES[n % len(LINES)], MARKERS[n % len(MARKERS)])
        for n, place in enumerate(places)
    ]


def is_dark(rgba: tuple[float, float, float, float]) -> bool:
    """Return whether white letters are more legible than black ones on a colour (WCAG 2)."""
    channels = np.asarray(rgba[:3])
    linear = np.where(channels <= 0.04045, channels / 12.92, ((channels + 0.055) / 1.055) ** 2.4)
    luminance = float(linear @ (0.2126, 0.7152, 0.0722))
    return 1.05 / (luminance + 0.05) > (luminance + 0.05) / 0.05


def shortened(name: str, width: int) -> str:
    """Return a name in at most `width` columns, with an ellipsis where something is left out."""
    if cell_len(name) <= width:
        return name
    return chop_cells(name, max(1, width - 1))[0] + "…" if width > 1 else "…"[:width]


def fitted(name: str, width: int, *, right: bool = False) -> str:
    """Return a name in exactly `width` columns: shortened, or filled with blanks."""
    short = shortened(name, width)
    if right:
        return " " * (width - cell_len(short)) + short
    return set_cell_size(short, width)


_LETTERS_PER_INCH = 15.0


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


def head(axes: Axes, name: str, inches: float) -> None:
    """Write the name of a panel above it, shortened to the width of the panel."""
    text = axes.set_title("", fontsize=NORMAL, loc="left", pad=4)
    text.set_parse_math(False)
    text.set_text(shortened(name, int(inches * _LETTERS_PER_INCH)))


def write(axes: Axes, x: Real, y: Real, text: str, **options: Any) -> None:
    """Write text from data letter by letter: a $ is a dollar."""
    look: dict[str, Any] = {"fontsize": SMALL, "color": INK}
    axes.text(x, y, text, parse_math=False, **look | options)


def name_axes(axes: Axes, *, x: str | None = None, y: str | None = None) -> None:
    """Write what the axes of a panel are."""
    for text, write in ((x, axes.set_xlabel), (y, axes.set_ylabel)):
        if text is not None:
            write(text, fontsize=NORMAL, labelpad=2)


def legend_rows(names: Sequence[str], width: float) -> int:
    """Return how many rows the legend of a figure of `width` inches has."""
    return -(-len(names) // _legend_columns(_legend_names(names, width), width))


def legend(
    figure: Figure, names: Sequence[str], handles: Sequence[Any], width: float, handle: float = 2.4
) -> None:
    """Write a legend above the panels; `handle` is the length of a sample in letters."""
    shown = _legend_names(names, width)
    result = figure.legend(
        handles,
        numbers(shown),
        loc="outside upper center",
        ncols=_legend_columns(shown, width),
        frameon=False,
        fontsize=SMALL + 0.5,
        handlelength=handle,
        columnspacing=1.4,
        borderaxespad=0.2,
    )
    rename(result, shown)


def numbers(names: Sequence[str]) -> list[str]:
    """Return what a legend is made with before `rename`.

    Before matplotlib 3.10 a name with _ in front is left out.
    """
    return [str(number) for number in range(len(names))]


def rename(legend: Legend, names: Sequence[str]) -> None:
    """Write names from data into a legend, letter by letter."""
    for text, name in zip(legend.get_texts(), names, strict=True):
        text.set_parse_math(False)
        text.set_text(name)


def line_handles(looks: Sequence[Look]) -> list[Line2D]:
    """Return the samples of lines in a legend."""
    return [
        Line2D([], [], linewidth=1.3, marker=look.marker, ms=3.5, **look.style) for look in looks
    ]


def patch(colour: str) -> Patch:
    """Return the sample of a bar in a legend."""
    return Patch(color=colour)


def name_bars(axes: Axes, names: Sequence[str], letters: int) -> None:
    """Write the names of lying bars, the first one on top, without marks and markup."""
    axes.set_yticks(range(len(names)))
    shown = [shortened(name, letters) for name in names]
    axes.set_yticklabels(shown, fontsize=SMALL, parse_math=False)
    axes.set_ylim(max(len(names), 1) - 0.4, -0.6)
    axes.tick_params(axis="y", length=0)


def few_ticks(axes: Axes) -> None:
    """Set few round ticks on the horizontal axis of a narrow panel."""
    axes.xaxis.set_major_locator(MaxNLocator(5))


def corner(figure: Figure, axes: Axes, x: Real, y: Real) -> Transform:
    """Return the coordinates of a panel, moved by inches."""
    return axes.transAxes + ScaledTranslation(x, y, figure.dpi_scale_trans)


def _legend_names(names: Sequence[str], width: float) -> list[str]:
    most = max(8, int(width * _LETTERS_PER_INCH) - 6)
    return [shortened(name, most) for name in names]


def _legend_columns(names: Sequence[str], width: float) -> int:
    letters = width * _LETTERS_PER_INCH
    return max(1, min(len(names), int(letters // (max(map(len, names)) + 6))))

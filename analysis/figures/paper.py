"""A page with panels, and the letters on it: names, legends. Names are data, never markup."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.legend import Legend
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator
from matplotlib.transforms import ScaledTranslation, Transform

from clinit.analysis.figures import style
from clinit.analysis.figures.line import Real
from clinit.analysis.figures.style import Look, shortened

_LETTERS_PER_INCH = 15.0


def page(
    width: float, height: float, rows: int = 1, columns: int = 1, **shared: Any
) -> tuple[Figure, list[Axes]]:
    """Return a figure and its panels, row by row; sizes in inches."""
    result = Figure(figsize=(width, height), dpi=style.DPI, layout="constrained")
    panels = result.subplots(rows, columns, squeeze=False, **shared)
    for axes in panels.flat:
        axes.tick_params(labelsize=style.SMALL, color=style.INK, width=0.6, length=2.5, pad=2)
        axes.spines[["top", "right"]].set_visible(False)
        axes.spines[["left", "bottom"]].set(color=style.INK, linewidth=0.6)
    return result, list(panels.flat)


def hide_rest(panels: Sequence[Axes], used: int) -> None:
    """Leave the panels that nothing is drawn in blank."""
    for axes in panels[used:]:
        axes.set_axis_off()


def head(axes: Axes, name: str, inches: float) -> None:
    """Write the name of a panel above it, shortened to the width of the panel."""
    text = axes.set_title("", fontsize=style.NORMAL, loc="left", pad=4)
    text.set_parse_math(False)
    text.set_text(shortened(name, int(inches * _LETTERS_PER_INCH)))


def write(axes: Axes, x: Real, y: Real, text: str, **options: Any) -> None:
    """Write text from data letter by letter: a $ is a dollar."""
    look: dict[str, Any] = {"fontsize": style.SMALL, "color": style.INK}
    axes.text(x, y, text, parse_math=False, **look | options)


def name_axes(axes: Axes, *, x: str | None = None, y: str | None = None) -> None:
    """Write what the axes of a panel are."""
    for text, write in ((x, axes.set_xlabel), (y, axes.set_ylabel)):
        if text is not None:
            write(text, fontsize=style.NORMAL, labelpad=2)


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
        fontsize=style.SMALL + 0.5,
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
    axes.set_yticklabels(shown, fontsize=style.SMALL, parse_math=False)
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

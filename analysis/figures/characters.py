"""What is drawn in the terminal: lines, legends and words of an exact width.

Each start has a character of its own, so that a plot reads without colour.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import plotext
from rich.text import Text

from clinit.analysis.figures.line import Line, Real, finite_values, round_ticks, tick_text
from clinit.analysis.figures.style import fitted, shortened

MARKERS = ("o", "x", "+", "#", "*", "%", "@", "&", "=", "~", "s", "z", "v", "n", "$")
_COLOURS = ("orange+", "blue+", "green+", "magenta+", "cyan+", "red+", "orange", "blue")
STYLES = (
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


@dataclass(frozen=True, slots=True)
class Plot:
    """A frame for lines: what is not in the lines themselves."""

    title: str
    width: int
    span: tuple[Real, Real]
    """The ends of the horizontal axis."""
    x_ticks: Sequence[tuple[Real, str]]
    verticals: Sequence[Real] = ()
    log: bool = False
    """Whether the vertical scale is logarithmic; a linear one starts at 0."""

    def of(self, series: Sequence[Sequence[Line]]) -> Text | None:
        """Draw lines, those of each start with its character; None where no value is finite."""
        values = finite_values(series, bands=False)
        if not values:
            return None
        drawn = _frame(self)
        # plotext's own logarithmic scale does not go together with ticks of one's own.
        height = math.log10 if self.log else float
        for number, lines in enumerate(series):
            marker = plotext.marker(MARKERS[number % len(MARKERS)], _colour(number))
            for line in lines:
                for piece in line.pieces():
                    seen = piece.thinned(*self.span, self.width)
                    heights = [height(value) for value in seen.mean.tolist()]
                    drawn.draw(drawn.signal(seen.at.tolist(), heights, marker=marker).lines())
        low = min(values) if self.log else min(0.0, *values)
        high = max(values) if max(values) > low else low + 1.0
        ticks = round_ticks(low, high, log=self.log)
        vertical = drawn.ruler("y", "left").lim(height(low), height(high))
        vertical.ticks([height(tick) for tick in ticks], [tick_text(tick) for tick in ticks])
        return Text.from_ansi(drawn.build().string().rstrip("\n"))


def legend(names: Sequence[str], width: int, *, markers: Sequence[str] = MARKERS) -> Text:
    """Return the character of each name, in lines of at most `width` columns."""
    lines, line = [], Text()
    for number, name in enumerate(names):
        sign = markers[number % len(markers)] * 3
        short = shortened(name, max(1, width - 4))
        entry = Text.assemble((sign, STYLES[number % len(STYLES)]), f" {short}")
        if line and line.cell_len + 3 + entry.cell_len > width:
            lines.append(line)
            line = Text()
        line = Text("   ").join([line, entry]) if line else entry
    return Text("\n").join([*lines, line])


def foot(words: str, width: int) -> Text:
    """Return the words below a figure, broken into lines."""
    return Text("\n".join(textwrap.wrap(words, max(1, width))), style="dim")


def title(words: str, width: int) -> Text:
    """Return the words above a figure or a panel."""
    return Text(shortened(words, width), style="bold")


def row(cells: Sequence[tuple[str, int]], width: int) -> str:
    """Return cells of given widths, a blank between them, to the right where negative."""
    text = " ".join(fitted(cell, abs(size), right=size < 0) for cell, size in cells)
    return shortened(text.rstrip(), width)


def _frame(plot: Plot) -> Any:
    drawn = plotext.figure
    drawn.clear()
    # A file or a pipe is not as narrow as the terminal that plotext may find behind it.
    plotext.terminal.limit(False, False)
    drawn.theme("colorless")
    drawn.plot_size(plot.width, HEIGHT)
    drawn.title(shortened(plot.title + (" (log scale)" if plot.log else ""), plot.width))
    drawn.legend(False)
    for place in plot.verticals:
        drawn.line(place, "vertical", pixel="gray")
    longest = max((len(text) for _, text in plot.x_ticks), default=1)
    every = math.ceil(len(plot.x_ticks) * (longest + 3) / max(1, plot.width - 8))
    chosen = plot.x_ticks[:: max(1, every)]
    ruler = drawn.ruler("x", "lower").lim(*plot.span)
    ruler.ticks([place for place, _ in chosen], [text for _, text in chosen])
    return drawn


def _colour(number: int) -> str:
    return _COLOURS[number % len(_COLOURS)]

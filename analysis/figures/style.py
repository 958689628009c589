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
from matplotlib.colors import to_hex
from rich.cells import cell_len, chop_cells, set_cell_size

from clinit.analysis.figures.line import Start

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

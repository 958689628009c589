"""Curves in the terminal: mean loss of the new images, and A_new, over the iterations of all tasks.

Losses are drawn as logarithms if the figure has a logarithmic scale. Points that are not finite
are left out.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import plotext
from rich.text import Text

from clinit.analysis.figures.curves import CURVES, cumulative, measured_lines, switches
from clinit.analysis.figures.line import Line, log_floor, shortened, starts_of
from clinit.analysis.report.measures import MEASURES
from clinit.analysis.report.run import RunSummary

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
        parts.append(_plot(lines, shared.ends, width, MEASURES[name].axis(runs), floor))
    parts.append("Iterations; vertical lines: task switches.")
    if len(starts) > len(SIGNS):
        parts.append(f"The first {len(SIGNS)} of {len(starts)} starts; --html FILE has all.")
    return Text("\n").join(map(Text.from_ansi, parts))


def _plot(
    series: Sequence[Sequence[Line]],
    ends: Sequence[int],
    width: int,
    title: str,
    floor: float | None,
) -> str:
    """Return a plot of the lines; with a `floor`, of the logarithms of values raised to it."""
    drawn = plotext.figure
    drawn.clear()
    plotext.terminal.limit(False, False)  # the output may be a file or a pipe
    drawn.theme("colorless")
    drawn.plot_size(width, HEIGHT)
    drawn.title(shortened(title if floor is None else f"log10 of {title}", width))
    drawn.legend(False)
    for end in ends[:-1]:
        drawn.line(end, "vertical", pixel="gray")
    for sign, lines in zip(SIGNS, series, strict=False):
        for line in lines:
            at, mean = (each[np.isfinite(line.mean)] for each in (line.at, line.mean))
            heights = mean if floor is None else np.log10(np.maximum(mean, floor))
            signal = drawn.signal(at.tolist(), heights.tolist(), marker=plotext.marker(sign))
            drawn.draw(signal.lines())
    return str(drawn.build().string().rstrip("\n"))

"""Lines in a panel, their scales and their ticks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, MaxNLocator, NullLocator

from clinit.analysis.figures import style
from clinit.analysis.figures.line import (
    Line,
    Real,
    finite_values,
    round_ticks,
    spans_decades,
    tick_text,
)
from clinit.analysis.figures.style import Look

MOST_PLAIN = 7
"""Most noisy lines in a panel that are told apart without a moving mean."""
MOST_COLUMNS = 900
"""Most columns into which a line is thinned: those of a panel of 3 inches."""


def draw_line(
    axes: Axes,
    line: Line,
    look: Look,
    span: tuple[Real, Real],
    *,
    marks: int | None = None,
    columns: int = MOST_COLUMNS,
) -> None:
    """Draw a line with its band, thinned to what can be seen.

    Args:
        axes: The panel.
        line: What is drawn.
        look: How.
        span: The ends of the horizontal axis.
        marks: About how many points have a marker; None: each.
        columns: Into how many the line is thinned.
    """
    for piece in line.pieces():
        seen = piece.thinned(*span, columns)
        if piece.has_band:  # thinning alone makes a range, which is not that of seeds
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


def draw_noisy_line(
    axes: Axes,
    line: Line,
    look: Look,
    span: tuple[Real, Real],
    *,
    lines: int,
    marks: int,
    columns: int = MOST_COLUMNS,
) -> None:
    """Draw a line over steps: pale beside a moving mean where many others cross it."""
    if lines <= MOST_PLAIN:
        draw_line(axes, line, look, span, marks=marks, columns=columns)
        return
    half = max(1, round((span[1] - span[0]) / 60))
    for piece in line.pieces():
        seen = piece.thinned(*span, columns)
        axes.plot(seen.at, seen.mean, linewidth=0.4, alpha=0.35, color=look.colour)
        draw_line(axes, piece.smoothed(half), look, span, marks=marks, columns=columns)


def scale_height(axes: Axes, values: Sequence[Real]) -> None:
    """Set a logarithmic scale with plain round ticks where values span decades, else one from 0."""
    if spans_decades(values):
        _logarithmic(axes, min(values), max(values))
    elif min(values, default=0.0) >= 0:
        axes.set_ylim(bottom=0)


def scale_losses(axes: Axes, series: Sequence[Sequence[Line]], floor: Real | None) -> None:
    """Set a scale from 0, or a logarithmic one from `floor`."""
    if floor is None:
        axes.set_ylim(bottom=0)
        return
    _logarithmic(axes, floor, max(finite_values(series)))
    axes.set_ylim(bottom=floor)


def mark_tasks(axes: Axes, ends: Sequence[Real], *, are_numbered: bool) -> None:
    """Shade every second task and write their numbers above the panel.

    Where the tasks of the runs end at different places, these are lines without numbers.
    """
    axes.set_xlim(0, max(ends[-1], 1))
    axes.xaxis.set_major_formatter(FuncFormatter(_thousands if ends[-1] >= 20_000 else _plain))
    if are_numbered and len(ends) <= 5:
        axes.set_xticks([0, *ends])
    else:
        axes.xaxis.set_major_locator(MaxNLocator(5, integer=True))
    if not are_numbered:
        for end in ends[:-1]:
            axes.axvline(end, color=style.GREY, linewidth=0.5, zorder=0)
        return
    starts = [0, *ends]
    every = -(-len(ends) // 10)
    for task, (start, end) in enumerate(zip(starts, ends, strict=False), 1):
        if task % 2 == 0:
            axes.axvspan(start, end, color=style.SHADE, linewidth=0, zorder=0)
        if (task - 1) % every == 0:
            axes.annotate(
                f"task {task}" if len(ends) <= 5 else str(task),
                ((start + end) / 2, 1.0),
                xycoords=axes.get_xaxis_transform(),
                xytext=(0, 2),
                textcoords="offset points",
                ha="center",
                va="bottom",
                fontsize=style.SMALL,
                color=style.INK,
            )


def number_tasks(axes: Axes, tasks: Sequence[int]) -> None:
    """Set ticks at whole tasks."""
    axes.xaxis.set_major_locator(MaxNLocator(min(len(tasks), 8), integer=True, min_n_ticks=1))
    axes.set_xlim(min(tasks) - 0.3, max(tasks) + 0.3)


def power_ticks(axes: Axes, lines: Sequence[Line]) -> None:
    """Set ticks at powers of ten on an axis of logarithms."""
    places = np.concatenate([line.at for line in lines])
    low, high = int(np.ceil(places.min())), int(np.floor(places.max()))
    powers = range(low, high + 1, max(1, -(-(high - low) // 4)))
    axes.set_xticks(powers, [f"$10^{{{power}}}$" for power in powers])


def _logarithmic(axes: Axes, low: Real, high: Real) -> None:
    ticks = round_ticks(low, high, log=True)
    axes.set_yscale("log")
    axes.set_yticks(ticks, [tick_text(tick) for tick in ticks])
    axes.yaxis.set_minor_locator(NullLocator())


def _plain(value: Any, _: int | None) -> str:
    return f"{value:.10g}"


def _thousands(value: Any, _: int | None) -> str:
    return f"{value / 1000:.10g}k" if value else "0"

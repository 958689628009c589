"""Loss and accuracy on the new task over iterations, as a figure for a paper."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import NullLocator

from clinit.analysis.curves import Segment, round_ticks, segments, spans_decades, switches
from clinit.analysis.run_summary import RunSummary
from clinit.analysis.settings import labels
from clinit.errors import RecordError
from clinit.extract.commit import commit_file
from clinit.extract.lock import claim_file
from clinit.extract.visible import visible

# M. Okabe, K. Ito, "Color universal design", 2008: told apart with any colour vision; its
# yellow is left out, which nobody can see on white paper.
COLOURS = ("#d55e00", "#0072b2", "#009e73", "#cc79a7", "#56b4e9", "#e69f00", "#000000")
LINES = ("-", "--", "-.", ":")
SHADE = "#f2f2f2"
INK = "#333333"
LEGEND_LETTERS = 105
"""How many letters of the legend's size fit across the figure, the line samples included."""
FORMATS = (".png", ".pdf", ".svg")


@dataclass(frozen=True, slots=True)
class Style:
    """How a curve is drawn, and its name in the legend; curves of one style are named once."""

    name: str
    look: tuple[tuple[str, Any], ...]
    """Settings of a line of matplotlib: colour and line style."""


def figure(runs: Sequence[RunSummary], styles: Sequence[Style] | None = None) -> Figure:
    """Return two panels side by side, 6.9 inches wide: the text width of two columns.

    Args:
        runs: Whose curves are drawn.
        styles: Of each run; default: each has one of its own.
    """
    styles = _styles(runs) if styles is None else styles
    shown = list(dict.fromkeys(styles))
    names = [_shortened(visible(style.name)) for style in shown]
    # Legend rows take their own height, so that no panel shrinks when there are many runs.
    columns = max(1, min(len(names), LEGEND_LETTERS // (max(map(len, names)) + 6)))
    rows = -(-len(names) // columns)
    result = Figure(figsize=(6.9, 2.55 + 0.19 * rows), dpi=200, layout="constrained")
    left, right = result.subplots(1, 2)
    ends = switches(runs)
    loss = [segments(run, "loss_new") for run in runs]
    accuracy = [segments(run, "acc_new") for run in runs]
    looks = [dict(style.look) for style in styles]
    _panel(left, loss, ends, looks)
    _panel(right, accuracy, ends, looks)
    left.set_ylabel("New-task training loss", fontsize=8.5)
    right.set_ylabel("New-task test accuracy (%)", fontsize=8.5)
    right.set_ylim(bottom=0)
    if spans_decades(loss):
        _logarithmic(left, loss)
    elif min((value for curve in loss for s in curve for value in s.values), default=0) >= 0:
        left.set_ylim(bottom=0)
    handles = [Line2D([], [], linewidth=1.5, **dict(style.look)) for style in shown]
    legend = result.legend(
        handles,
        [
            str(number) for number in range(len(names))
        ],  # before matplotlib 3.10 a name with _ in front is left out
        loc="outside upper center",
        ncols=columns,
        frameon=False,
        fontsize=8,
        handlelength=2.6,
    )
    for text, name in zip(legend.get_texts(), names, strict=True):
        text.set_parse_math(False)  # a $ is a dollar
        text.set_text(name)
    return result


def save_figure(runs: Sequence[RunSummary], path: Path) -> None:
    """Write the figure to `path`; its suffix says the format: png, pdf or svg.

    Raises:
        RecordError: If the suffix is none of these.
        ClinitError: If the file cannot be written.
    """
    if path.suffix.lower() not in FORMATS:
        raise RecordError(
            f"cannot plot to {path}: its ending is {path.suffix or 'missing'!r}",
            remedy=f"Give a file name that ends in one of {', '.join(FORMATS)}.",
        )
    # Letters stay letters in PDF and SVG files: they can be searched and edited.
    with rc_context({"svg.fonttype": "none", "pdf.fonttype": 42, "text.usetex": False}):
        drawn = figure(runs)
        content = io.BytesIO()  # the writer of PDF has an error of its own for a full disk
        drawn.savefig(content, format=path.suffix.lower()[1:])
    with claim_file(path, on_busy=lambda: None):
        commit_file(path, lambda draft: draft.write_bytes(content.getbuffer()))


def _styles(runs: Sequence[RunSummary]) -> list[Style]:
    pairs = zip(labels(runs), _looks(runs), strict=True)
    return [Style(name, tuple(look.items())) for name, look in pairs]


def _shortened(name: str) -> str:
    """Return a name that leaves room for the panels."""
    most = LEGEND_LETTERS - 6
    return name if len(name) <= most else name[: most - 1] + "…"


def _looks(runs: Sequence[RunSummary]) -> list[dict[str, Any]]:
    """Return colour and line style of each run: one colour per initialisation if they suffice."""
    inits = list(dict.fromkeys(run.init for run in runs))
    variants = [[other for other in runs if other.init == init] for init in inits]
    if len(inits) <= len(COLOURS) and max(map(len, variants)) <= len(LINES):
        places = [
            (inits.index(run.init), variants[inits.index(run.init)].index(run)) for run in runs
        ]
    else:
        places = [(index, index // len(COLOURS)) for index in range(len(runs))]
    return [
        {"color": COLOURS[colour % len(COLOURS)], "linestyle": LINES[line % len(LINES)]}
        for colour, line in places
    ]


def _logarithmic(axes: Axes, curves: Sequence[Sequence[Segment]]) -> None:
    """Set a logarithmic scale whose ticks are plain round numbers."""
    values = [value for curve in curves for segment in curve for value in segment.values]
    ticks = round_ticks(min(values), max(values), log=True)
    axes.set_yscale("log")
    axes.set_yticks(ticks, [f"{tick:g}" for tick in ticks])
    axes.yaxis.set_minor_locator(NullLocator())


def _panel(
    axes: Axes,
    curves: Sequence[Sequence[Segment]],
    ends: Sequence[int],
    looks: Sequence[dict[str, Any]],
) -> None:
    starts = [0, *ends]
    for task, (start, end) in enumerate(zip(starts, ends, strict=False), 1):
        if task % 2 == 0:
            axes.axvspan(start, end, color=SHADE, linewidth=0, zorder=0)
        if len(ends) <= 10:
            axes.annotate(
                f"task {task}" if len(ends) <= 6 else str(task),
                ((start + end) / 2, 1.0),
                xycoords=axes.get_xaxis_transform(),
                xytext=(0, 2),
                textcoords="offset points",
                ha="center",
                va="bottom",
                fontsize=7,
                color=INK,
            )
    for curve, look in zip(curves, looks, strict=True):
        for segment in curve:
            # A task that was only evaluated before its first step is one point, not a line.
            marker = "o" if len(segment.values) == 1 else ""
            axes.plot(
                segment.iterations,
                segment.values,
                linewidth=1.5,
                marker=marker,
                ms=3,
                clip_on=False,
                **look,
            )
    axes.set_xlim(0, max(ends[-1], 1))
    if len(ends) <= 6:
        axes.set_xticks(starts)
    axes.set_xlabel("Iterations", fontsize=8.5)
    axes.tick_params(labelsize=7.5, color=INK)
    axes.spines[["top", "right"]].set_visible(False)

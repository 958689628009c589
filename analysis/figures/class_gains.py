"""What each new class gains from a start over random rows, or over another start."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from clinit.analysis.figures.line import Start, starts_of
from clinit.analysis.figures.style import shortened
from clinit.analysis.metrics.classes import ClassGains, class_gains
from clinit.analysis.report.run import RunSummary
from clinit.errors import RecordError
from clinit.words import visible

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MOST_NAMED = 40
"""Most classes whose names are written beside their bars."""
ENDS = 3
"""How many names are written at each end where there are more classes."""


@dataclass(frozen=True, slots=True, eq=False)
class Duel:
    """Two starts on the same seeds."""

    start: str
    reference: str
    seeds: int
    gains: ClassGains

    @property
    def words(self) -> str:
        """What is compared."""
        return f"{self.start} minus {self.reference}"


def duel(runs: Sequence[RunSummary]) -> Duel:
    """Return the gains of least-square over random rows.

    Of several least-square starts it is the last one, which is calibrated if one is. Without
    random rows the gains are over the first start; without least-square rows they are those of
    the last one. So of two starts the second is compared with the first, whatever they are.

    Raises:
        RecordError: If there are no two starts of one stream, or no class has test images.
    """
    for reference, start in _pairs(starts_of(runs)):
        by_key = {run.key: run.record for run in reference.runs}
        both = [run for run in start.runs if run.key in by_key]
        if not both:
            continue
        gains = class_gains([run.record for run in both], [by_key[run.key] for run in both])
        if len(gains.table):
            return Duel(start.name, reference.name, len(both), gains)
    raise RecordError(
        "there are no two starts of the same stream and settings whose new classes have test"
        " images",
        remedy="Add `--init random --init least-square` to the `clinit train-head` command, or"
        " give the records of both.",
    )


def figure(runs: Sequence[RunSummary]) -> Figure:
    """Return the bars of the classes: lying with their names, or standing where there are many."""
    from clinit.analysis.figures import style

    found = duel(runs)
    count = len(found.gains.table)
    lines = [f"{found.words}{_seeds(found)}", found.gains.summary]
    if count <= MOST_NAMED:
        result, (axes,) = style.page(style.COLUMN, 0.85 + 0.135 * count)
        _lying_bars(axes, found)
    else:
        result, (axes,) = style.page(style.COLUMN, 2.6)
        _standing_bars(axes, found)
        lines += _ends(found)
    text = result.suptitle("", fontsize=style.NORMAL, x=0.01, ha="left")
    text.set_parse_math(False)
    text.set_text("\n".join(shortened(line, 50) for line in lines))
    return result


def _pairs(starts: Sequence[Start]) -> list[tuple[Start, Start]]:
    """Return pairs of a reference and a start, the best choice first."""
    references = sorted(starts, key=lambda start: start.first.init != "random")
    last_first = list(reversed(starts))
    others = sorted(last_first, key=lambda start: start.first.init != "least-square")
    return [(ref, other) for ref in references for other in others if other is not ref]


def _seeds(found: Duel) -> str:
    return f" ({found.seeds} seeds)" if found.seeds > 1 else ""


def _ends(found: Duel) -> list[str]:
    """Return the names at both ends, a line each; all have the same room."""
    names = [visible(name) for name in found.gains.table["name"]]
    room = (50 - len("most: ") - 2 * (ENDS - 1)) // ENDS
    return [
        f"{words}: {', '.join(shortened(name, room) for name in part)}"
        for words, part in (("most", names[:ENDS]), ("least", names[-ENDS:]))
    ]


def _lying_bars(axes: Axes, found: Duel) -> None:
    from clinit.analysis.figures import style

    table = found.gains.table
    gains = table["gain"].to_list()
    axes.barh(range(len(gains)), gains, 0.7, color=_colours(gains))
    room = max(map(abs, gains)) or 1.0
    blank = {"facecolor": "white", "edgecolor": "none", "pad": 0.4}
    for place, gain in enumerate(gains):
        at, side = (gain + 0.02 * room, "left") if gain >= 0 else (gain - 0.02 * room, "right")
        style.write(axes, at, place, f"{gain:+.1f}", ha=side, va="center", bbox=blank)
    low, high = min(0.0, *gains), max(0.0, *gains)
    letters = 0.16 * (high - low) or 1.0
    axes.set_xlim(low - letters * (low < 0), high + letters * (high > 0 or low == 0))
    style.few_ticks(axes)
    style.name_bars(axes, [visible(name) for name in table["name"]], 22)
    axes.axvline(0, color=style.INK, linewidth=0.6)
    axes.axvline(found.gains.mean, color=style.GREY, linewidth=0.8, linestyle="--", zorder=0)
    style.name_axes(axes, x="Gain (points); dashed: mean")


def _standing_bars(axes: Axes, found: Duel) -> None:
    from clinit.analysis.figures import style

    table = found.gains.table
    gains = table["gain"].to_list()
    axes.bar(range(1, len(gains) + 1), gains, 1.0, color=_colours(gains), linewidth=0)
    axes.axhline(0, color=style.INK, linewidth=0.6)
    axes.axhline(found.gains.mean, color=style.GREY, linewidth=0.8, linestyle="--")
    axes.set_xlim(0.5, len(gains) + 0.5)
    style.name_axes(axes, x="Classes, sorted", y="Gain (points); dashed: mean")


def _colours(gains: Sequence[float]) -> list[str]:
    from clinit.analysis.figures.style import COLOURS

    return [COLOURS[1] if gain > 0 else COLOURS[0] for gain in gains]

"""The pairs of a new and an old class that are confused most often at the end of a run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from clinit.analysis.figures.line import Start, seed_of, starts_of
from clinit.analysis.figures.style import shortened
from clinit.analysis.metrics.classes import confusions, mistakes_of
from clinit.analysis.report.run import RunSummary
from clinit.words import visible

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TOP = 10
"""How many pairs of each start are drawn."""


@dataclass(frozen=True, slots=True)
class Class:
    """A class and the task that it came with, 0 for the base."""

    name: str
    task: int

    def words(self, width: int) -> str:
        """Return name and task in at most `width` columns; only the name is shortened."""
        came = f" [{self.task or 'base'}]"
        return shortened(self.name, max(1, width - len(came))) + came


@dataclass(frozen=True, slots=True)
class Pair:
    """Images of one class that are labelled as another one."""

    true: Class
    predicted: Class
    is_new: bool
    """Whether the true class is the newer one."""
    count: int
    share: float
    """Percent of the test images of the true class."""

    @property
    def numbers(self) -> str:
        """Count and share in words."""
        return f"{self.count:,} ({self.share:.1f} %)"


@dataclass(frozen=True, slots=True)
class Pairs:
    """The worst pairs of a run."""

    name: str
    pairs: tuple[Pair, ...]


def worst_pairs(runs: Sequence[RunSummary], top: int = TOP) -> list[Pairs]:
    """Return the worst pairs of each start, those of its first seed.

    Raises:
        RecordError: If no record holds which image was labelled as what.
    """
    starts = [start for start in starts_of(runs) if start.first.record.mistakes is not None]
    if not starts:
        mistakes_of(runs[0].record)  # raises
    return [_pairs(start, top) for start in starts]


def figure(runs: Sequence[RunSummary]) -> Figure:
    """Return one panel a start, two side by side."""
    from clinit.analysis.figures import style

    found = worst_pairs(runs)
    columns = min(len(found), 2)
    rows = -(-len(found) // columns)
    width = style.COLUMN if columns == 1 else style.PAGE
    most = max(1, *(len(each.pairs) for each in found))
    height = 0.35 + rows * (0.62 + 0.15 * most)
    result, panels = style.page(width, height, rows, columns, sharex=True)
    longest = max((pair.count for each in found for pair in each.pairs), default=1)
    colours = {True: style.COLOURS[0], False: style.COLOURS[4]}
    for number, (axes, each) in enumerate(zip(panels, found, strict=False)):
        style.head(axes, each.name, width / columns)
        places = range(len(each.pairs))
        bars = axes.barh(places, [pair.count for pair in each.pairs], 0.7)
        for bar, pair in zip(bars, each.pairs, strict=True):
            bar.set(color=colours[pair.is_new])
            style.write(
                axes,
                pair.count + 0.02 * longest,
                bar.get_y() + bar.get_height() / 2,
                pair.numbers,
                va="center",
            )
        names = [f"{pair.true.words(18)} → {pair.predicted.words(18)}" for pair in each.pairs]
        style.name_bars(axes, names, 40)
        axes.set_ylim(most - 0.4, -0.6)
        axes.set_xlim(0, 1.5 * longest)
        axes.tick_params(labelbottom=number + columns >= len(found))
    style.hide_rest(panels, len(found))
    result.supxlabel("Test images (share of those of the true class)", fontsize=style.NORMAL)
    handles = [style.patch(colours[is_new]) for is_new in (True, False)]
    words = ["new class labelled as an old one", "old class as a new one"]
    style.legend(result, words, handles, width, handle=1.2)
    return result


def _pairs(start: Start, top: int) -> Pairs:
    name = start.name
    if len(start.runs) > 1:
        name += f", {seed_of(start.first)}"
    record = start.first.record
    table = confusions(mistakes_of(record), record.classes, top)
    pairs = (
        Pair(
            Class(visible(line["true_class"]), line["true_task"]),
            Class(visible(line["predicted_class"]), line["predicted_task"]),
            line["true_is_new"],
            line["count"],
            line["share"],
        )
        for line in table.iter_rows(named=True)
    )
    return Pairs(name, tuple(pairs))

"""The figure of the worst confusions."""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from clinit.analysis.figures import style
from clinit.analysis.figures.line import seed_of, shortened, starts_of
from clinit.analysis.metrics.classes import confusions, mistakes_of
from clinit.analysis.report.run import RunSummary
from clinit.words import visible

TOP = 10
"""How many confused pairs of each start are drawn."""


def worst_pairs(runs: Sequence[RunSummary]) -> dict[str, pl.DataFrame]:
    """Return the worst pairs of each start, from its first seed, by its name.

    Raises:
        RecordError: If no record lists the mistakes.
    """
    starts = [start for start in starts_of(runs) if start.first.record.mistakes is not None]
    if not starts:
        mistakes_of(runs[0].record)  # raises
    found = {}
    for start in starts:
        name = f"{start.name}, {seed_of(start.first)}" if len(start.runs) > 1 else start.name
        record = start.first.record
        found[name] = confusions(mistakes_of(record), record.classes, TOP)
    return found


def confusions_figure(runs: Sequence[RunSummary]) -> Figure:
    """Return one panel a start, two side by side."""
    found = worst_pairs(runs)
    most = max(1, *(len(pairs) for pairs in found.values()))
    grid = style.Grid.of(len(found), 2, 0.62 + 0.15 * most, above=0.35, sharex=True)
    longest = max((count for pairs in found.values() for count in pairs["count"]), default=1)
    colours = {True: style.COLOURS[0], False: style.COLOURS[4]}
    for number, (axes, (name, pairs)) in enumerate(zip(grid.axes, found.items(), strict=True)):
        grid.head(number, name)
        is_new = pairs["true_is_new"].to_list()
        axes.barh(range(len(pairs)), pairs["count"], 0.7, color=[colours[each] for each in is_new])
        names = []
        for place, pair in enumerate(pairs.iter_rows(named=True)):
            words = f"{pair['count']:,} ({pair['share']:.1f} %)"
            style.write(axes, pair["count"] + 0.02 * longest, place, words, va="center")
            sides = [class_words(pair[f"{s}_class"], pair[f"{s}_task"]) for s in SIDES]
            names.append(" → ".join(sides))
        style.name_bars(axes, names, 40)
        axes.set_ylim(most - 0.4, -0.6)
        axes.set_xlim(0, 1.5 * longest)
        axes.tick_params(labelbottom=number + grid.columns >= len(found))
    grid.figure.supxlabel("Test images (share of all of the true class)", fontsize=style.NORMAL)
    handles = [Patch(color=colours[is_new]) for is_new in (True, False)]
    grid.legend(["new class labelled as an old one", "old class as a new one"], handles, sample=1.2)
    return grid.figure


SIDES = ("true", "predicted")


def class_words(name: str, task: int, width: int = 18) -> str:
    """Return a class and its task in at most `width` columns; only the name is shortened."""
    came = f" [{task or 'base'}]"
    return shortened(visible(name), max(1, width - len(came))) + came

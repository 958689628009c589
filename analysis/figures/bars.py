"""Figures of bars: the worst confusions, what classes gain from a start, and what a start costs."""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator

from clinit.analysis.figures import style
from clinit.analysis.figures.line import Start, seed_of, shortened, starts_of
from clinit.analysis.metrics.classes import class_gains, confusions, mistakes_of
from clinit.analysis.metrics.cost import initialisation_seconds
from clinit.analysis.report.run import RunSummary
from clinit.errors import RecordError
from clinit.words import visible

TOP = 10
"""How many confused pairs of each start are drawn."""
MOST_NAMED = 40
"""Most classes whose names are written beside their bars."""
ENDS = 3
"""How many names are written at each end where there are more classes."""
TIE = 1e-9
"""Gains closer to 0 are equal accuracies: means over seeds are not exact."""


def worst_pairs(runs: Sequence[RunSummary]) -> dict[str, pl.DataFrame]:
    """Return the worst pairs of each start, those of its first seed, by its name.

    Raises:
        RecordError: If no record holds which image was labelled as what.
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
    grid.figure.supxlabel("Test images (share of those of the true class)", fontsize=style.NORMAL)
    handles = [Patch(color=colours[is_new]) for is_new in (True, False)]
    grid.legend(["new class labelled as an old one", "old class as a new one"], handles, sample=1.2)
    return grid.figure


SIDES = ("true", "predicted")


def class_words(name: str, task: int, width: int = 18) -> str:
    """Return a class and its task in at most `width` columns; only the name is shortened."""
    came = f" [{task or 'base'}]"
    return shortened(visible(name), max(1, width - len(came))) + came


def duel(runs: Sequence[RunSummary]) -> tuple[str, int, pl.DataFrame]:
    """Return what is compared, over how many seeds, and the gains: least-square over random rows.

    Of several least-square starts it is the last one, which is calibrated if one is. Without
    random rows the gains are over the first start; without least-square rows they are those of
    the last one. So of two starts the second is compared with the first, whatever they are.

    Raises:
        RecordError: If there are no two starts of one stream, or no class has test images.
    """
    starts = starts_of(runs)
    references = sorted(starts, key=lambda start: start.first.init != "random")
    last_first = starts[::-1]
    others = sorted(last_first, key=lambda start: start.first.init != "least-square")
    for reference, start in ((ref, other) for ref in references for other in others):
        by_key = {run.key: run.record for run in reference.runs}
        both = [run for run in start.runs if run.key in by_key]
        if start is reference or not both:
            continue
        gains = class_gains([run.record for run in both], [by_key[run.key] for run in both])
        if len(gains):
            return f"{start.name} minus {reference.name}", len(both), gains
    raise RecordError(
        "there are no two starts of the same stream and settings whose new classes have test"
        " images",
        remedy="Add `--init random --init least-square` to the `clinit train-head` command, or"
        " give the records of both.",
    )


def class_gains_figure(runs: Sequence[RunSummary]) -> Figure:
    """Return the bars of the classes: lying with their names, or standing where there are many."""
    words, seeds, table = duel(runs)
    names, gains = [visible(name) for name in table["name"]], table["gain"].to_list()
    mean, count = sum(gains) / len(gains), len(gains)
    gaining, losing = sum(gain > TIE for gain in gains), sum(gain < -TIE for gain in gains)
    equal = count - gaining - losing
    lines = [
        words + (f" ({seeds} seeds)" if seeds > 1 else ""),
        f"mean {mean:+.1f}: {gaining} gain, {losing} lose, {equal} equal",
    ]
    is_few = count <= MOST_NAMED
    grid = style.Grid.of(1, 1, 0.85 + 0.135 * count if is_few else 2.6, above=0.0)
    (axes,) = grid.axes
    colours = [style.COLOURS[1] if gain > 0 else style.COLOURS[0] for gain in gains]
    if is_few:
        axes.barh(range(count), gains, 0.7, color=colours)
        _write_gains(axes, gains)
        style.name_bars(axes, names, 22)
        axes.axvline(0, color=style.INK, linewidth=0.6)
        axes.axvline(mean, color=style.GREY, linewidth=0.8, linestyle="--", zorder=0)
        grid.name_axes(0, x="Gain (points); dashed: mean")
    else:
        axes.bar(range(1, count + 1), gains, 1.0, color=colours, linewidth=0)
        axes.axhline(0, color=style.INK, linewidth=0.6)
        axes.axhline(mean, color=style.GREY, linewidth=0.8, linestyle="--")
        axes.set_xlim(0.5, count + 0.5)
        grid.name_axes(0, x="Classes, sorted", y="Gain (points); dashed: mean")
        room = (50 - len("most: ") - 2 * (ENDS - 1)) // ENDS
        for which, part in (("most", names[:ENDS]), ("least", names[-ENDS:])):
            lines.append(f"{which}: {', '.join(shortened(name, room) for name in part)}")
    text = grid.figure.suptitle("", fontsize=style.NORMAL, x=0.01, ha="left")
    text.set_parse_math(False)
    text.set_text("\n".join(shortened(line, 50) for line in lines))
    return grid.figure


def _write_gains(axes: Axes, gains: Sequence[float]) -> None:
    """Write the gains beside their bars, and leave room for them."""
    room = max(map(abs, gains)) or 1.0
    blank = {"facecolor": "white", "edgecolor": "none", "pad": 0.4}
    for place, gain in enumerate(gains):
        at, side = (gain + 0.02 * room, "left") if gain >= 0 else (gain - 0.02 * room, "right")
        style.write(axes, at, place, f"{gain:+.1f}", ha=side, va="center", bbox=blank)
    low, high = min(0.0, *gains), max(0.0, *gains)
    letters = 0.16 * (high - low) or 1.0
    axes.set_xlim(low - letters * (low < 0), high + letters * (high > 0 or low == 0))
    axes.xaxis.set_major_locator(MaxNLocator(5))


def cost_of(start: Start) -> tuple[float, float] | None:
    """Return the seconds of initialisation and of the rest, means over seeds; None if unknown."""
    infos = [run.record.info for run in start.runs]
    pairs = [(initialisation_seconds(info["tasks"]), info.get("seconds")) for info in infos]
    known = [(first, total) for first, total in pairs if first is not None and total is not None]
    if not known:
        return None
    first, total = (sum(values) / len(known) for values in zip(*known, strict=True))
    return first, max(0.0, total - first)


def cost_figure(runs: Sequence[RunSummary]) -> Figure:
    """Return one bar a start, as wide as a column."""
    costs = {start.name: cost for start in starts_of(runs) if (cost := cost_of(start)) is not None}
    if not costs:
        raise RecordError(
            "no record says how many seconds its run and its initialisations took",
            remedy="Run them again: `clinit rerun RUN --out FOLDER` records them.",
        )
    grid = style.Grid.of(1, 1, 0.75 + 0.2 * len(costs), above=0.0)
    (axes,) = grid.axes
    first, rest = ([*values] for values in zip(*costs.values(), strict=True))
    totals = [sum(cost) for cost in costs.values()]
    longest = max(totals) or 1.0
    bars = [
        axes.barh(range(len(costs)), first, 0.65, color=style.COLOURS[0]),
        axes.barh(range(len(costs)), rest, 0.65, first, color="#c9d9e6"),
    ]
    for place, (start, total) in enumerate(zip(first, totals, strict=True)):
        share = f"{100 * start / total if total > 0 else 0.0:.1f} %"
        style.write(axes, total + 0.015 * longest, place, share, va="center")
    style.name_bars(axes, [*costs], 26)
    axes.set_xlim(0, 1.22 * longest)
    grid.name_axes(0, x="Seconds per run")
    words = ["initialisation (share in %)", "training and evaluation"]
    grid.legend(words, bars, sample=1.2)
    return grid.figure

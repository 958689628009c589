"""How much sooner a start learns the first task than random rows do: both readings of the gain.

The lines are the accuracies on the new classes. The levels are 95 % of random's best and random's
best; `clinit.analysis.efficiency` defines what is read from them, and `race` says who races.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from rich.text import Text

from clinit.analysis.efficiency import SHARE
from clinit.analysis.figures.race import Race, races
from clinit.analysis.figures.shorten import shortened
from clinit.analysis.run_summary import RunSummary

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from clinit.analysis.figures.style import Look


def figure(runs: Sequence[RunSummary]) -> Figure:
    """Return one panel for each race, as wide as a column."""
    from clinit.analysis.figures import paper, style

    found = races(runs)
    columns = min(len(found), 2)
    rows = -(-len(found) // columns)
    most = max(len(race.runners) for race in found)
    height = rows * (2.55 + 0.175 * most)
    result, panels = paper.page(style.COLUMN if columns == 1 else style.PAGE, height, rows, columns)
    for axes, race in zip(panels, found, strict=False):
        _panel(result, axes, race)
    paper.hide_rest(panels, len(found))
    return result


def draw(runs: Sequence[RunSummary], width: int) -> Text:
    """Return one plot for each race, with the iterations and gains below it."""
    from clinit.analysis.figures import characters

    parts = []
    for race in races(runs):
        runners = race.runners[: len(characters.MARKERS)]
        names = [runner.start.name for runner in runners]
        last = max(float(runner.line.at[-1]) for runner in runners)
        plot = characters.Plot(
            f"Accuracy on the new classes of {race.words}, %",
            width,
            (0, last),
            x_ticks=characters.even_ticks(0, last),
            verticals=sorted({race.of_random.random_reached, race.of_random.random_best}),
            horizontals=(race.target, race.best),
            log=False,
        )
        picture = plot.of([[runner.line] for runner in runners])
        parts += [characters.legend(names, width), *([] if picture is None else [picture])]
        name_width = min(max(map(len, names)), width - 46)
        header = ("start", name_width), ("I_d", -7), ("equal level", -12), ("random's best", -14)
        parts.append(Text(characters.row(header, width), style="bold"))
        for name, runner in zip(names, runners, strict=True):
            gain = runner.gain
            reached = "never" if gain.reached is None else str(gain.reached)
            equal, best = gain.value("equal-level"), gain.value("random-best")
            cells = (
                (name, name_width),
                (reached, -7),
                ("-" if equal is None else f"×{equal:.3g}", -12),
                ("-" if best is None else f"×{best:.3g}", -14),
            )
            parts.append(Text(characters.row(cells, width)))
        parts.append(characters.foot(_explained(race), width))
    return Text("\n").join(parts)


def _explained(race: Race) -> str:
    own = race.of_random
    return (
        f"Horizontal lines: random's best ({race.best:.1f} %) and {100 * SHARE:g} % of it"
        f" ({race.target:.1f} %). Vertical lines: random reaches them, I_r = {own.random_reached}"
        f" at equal level, {own.random_best} at random's best. I_d: iterations of a start to the"
        f" lower level. Gain: I_r / I_d; iterations below {own.first} count as {own.first}."
    )


def _panel(figure: Figure, axes: Axes, race: Race) -> None:
    from clinit.analysis.figures import paper, strokes, style

    looks = style.looks_of([runner.start for runner in race.runners])
    last = max(1.0, *(float(runner.line.at[-1]) for runner in race.runners))
    grey: dict[str, Any] = {"color": style.GREY, "linewidth": 0.8, "zorder": 1}
    axes.axhline(race.target, linestyle="--", **grey)
    axes.axhline(race.best, linestyle=":", **grey)
    for runner, look in zip(race.runners, looks, strict=True):
        strokes.draw_line(axes, runner.line, look, (0, last))
        if runner.gain.reached is not None:
            at = runner.line.at.tolist().index(runner.gain.reached)
            axes.plot(
                runner.line.at[at],
                runner.line.mean[at],
                "o",
                ms=6,
                markerfacecolor="none",
                markeredgecolor=look.colour,
                clip_on=False,
            )
    axes.set_xlim(0, last)
    axes.set_ylim(0, 104)
    axes.set_yticks(range(0, 101, 20))
    paper.name_axes(axes, x=f"Iterations of {race.words}", y="Test accuracy, new classes (%)")
    right: dict[str, Any] = {
        "xycoords": axes.get_yaxis_transform(),
        "textcoords": "offset points",
        "fontsize": style.SMALL,
        "color": style.INK,
    }
    axes.annotate("random's\nbest", (1, race.best), xytext=(3, -2), va="bottom", **right)
    axes.annotate(f"{100 * SHARE:g} % of it", (1, race.target), xytext=(3, 2), va="top", **right)
    _random_iterations(axes, race, last)
    _race_legend(figure, axes, race, looks)


def _random_iterations(axes: Axes, race: Race, last: float) -> None:
    """Mark when random reaches both levels: I_r by both readings."""
    from clinit.analysis.figures import style

    equal, best = race.of_random.random_reached, race.of_random.random_best
    marks = [(equal, race.target, f"at equal level: {equal}")]
    if best == equal:
        marks = [(best, race.best, f"by both readings: {best}")]
    else:
        marks.append((best, race.best, f"at random's best: {best}"))
    is_close = 0 < (best - equal) / last < 0.09
    for number, (at, level, words) in enumerate(marks):
        axes.vlines(at, 0, level, color=style.GREY, linewidth=0.8, linestyle="-", zorder=1)
        is_left = at / last > 0.93 if number == len(marks) - 1 else is_close
        axes.annotate(
            f"$I_r$ {words}",
            (at, 0),
            xytext=(-2 if is_left else 2, 3),
            textcoords="offset points",
            rotation=90,
            ha="right" if is_left else "left",
            va="bottom",
            fontsize=style.SMALL,
            color=style.INK,
        )


def _race_legend(figure: Figure, axes: Axes, race: Race, looks: Sequence[Look]) -> None:
    from clinit.analysis.figures import paper, style

    names = [
        f"{shortened(runner.start.name, 40 - len(runner.result))}: {runner.result}"
        for runner in race.runners
    ]
    box = axes.legend(
        paper.line_handles(looks),
        paper.numbers(names),
        loc="upper left",
        bbox_to_anchor=(0, 0),
        bbox_transform=paper.corner(figure, axes, -0.42, -0.4),
        frameon=False,
        fontsize=style.SMALL + 0.5,
        handlelength=2.4,
        borderaxespad=0,
        labelspacing=0.25,
        title="start: $I_d$, gain at equal level, at random's best",
        title_fontsize=style.SMALL + 0.5,
        alignment="left",
    )
    paper.rename(box, names)

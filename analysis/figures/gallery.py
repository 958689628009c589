"""The figures by name, and as files: PNG, PDF or SVG.

`efficiency` shows how much faster a start learns the first task than random rows. The lines are
means over seeds of the accuracy on the new classes, with the range of the seeds. The level is the
mean of 95 % of the random run's best accuracy, which each seed has for itself; the legend has the
gain of the first task, a mean over seeds too.
"""

from __future__ import annotations

import io
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Literal

import polars as pl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.font_manager import fontManager
from matplotlib.style import context
from matplotlib.transforms import ScaledTranslation

from clinit.analysis.figures import curves, style
from clinit.analysis.figures.line import Line, StartRuns, lines_of, shortened, starts_of
from clinit.analysis.metrics.efficiency import NO_STEP, SHARE
from clinit.analysis.report.measures import MEANS, MEASURES, Measure, measures_of
from clinit.analysis.report.run import VALUES, RunSummary
from clinit.analysis.report.settings import ByData, SeedGroup
from clinit.errors import RecordError
from clinit.files.lock import write_in_turn
from clinit.files.paths import check_writable

NAMES = ("curves", "efficiency")


def figure_of(name: str, runs: Sequence[RunSummary]) -> Figure:
    """Return the figure of this name for a paper: one of `NAMES`, or of a measure.

    A measure of evaluations is drawn over iterations, any other measure as a dot per start.

    Raises:
        RecordError: If there is no figure of this name, or the records lack its data.
    """
    if name == "curves":
        return curves.figure(runs)
    if name == "efficiency":
        return efficiency(runs)
    (measure,) = measures_of([name])
    return curves.figure(runs, [measure.name]) if measure.name in VALUES else _dots(runs, measure)


def _dots(runs: Sequence[RunSummary], measure: Measure) -> Figure:
    """Return a panel with the values of each start, and their means as larger dots."""
    starts = starts_of(runs)
    values = [[run.row().get(measure.name) for run in start.runs] for start in starts]
    known = [[measure.factor * each for each in own if each is not None] for own in values]
    if measure.name not in MEANS or not any(known):
        raise RecordError(
            f"no run has a value of {measure.name}",
            remedy="Give a column of the tables of runs; docs/metrics.md lists them.",
        )
    figure, (axes,) = style.panels(1, 1, 0.7 + 0.22 * len(starts))
    for place, (own, look) in enumerate(zip(known, style.looks_of(starts), strict=True)):
        axes.plot(own, [place] * len(own), "o", ms=3, alpha=0.5, color=look.colour)
        if own:
            axes.plot(fmean(own), place, look.marker, ms=7, color=look.colour)
    names = [shortened(start.name, 32) for start in starts]
    axes.set_yticks(range(len(names)), names, parse_math=False)
    axes.set_ylim(len(starts) - 0.5, -0.5)
    style.name_axes(axes, measure.axis(runs), "")
    return figure


@dataclass(frozen=True, slots=True, eq=False)
class Race:
    """Comparable starts in the first task that has a level to reach."""

    task: int
    target: float
    """The level in percent, mean over seeds."""
    starts: Sequence[StartRuns]

    def line(self, start: StartRuns) -> Line:
        """Return the means over seeds of the accuracy on the new classes, with their range."""
        return lines_of([run.points for run in start.runs], "acc_new")[self.task]

    def result(self, start: StartRuns) -> str:
        """Return the gain as in the table of the task: mean and deviation over seeds."""
        rows = [row for run in start.runs for row in run.row()["tasks"] if row["task"] == self.task]
        cell = SeedGroup(start.runs, tuple(rows)).cell(MEASURES["gain_equal_level"])
        return "never" if cell.mean is None else cell.text(beside=True).plain


def races(runs: Sequence[RunSummary]) -> list[Race]:
    """Return a race for each group of comparable runs with a random run.

    Raises:
        RecordError: If there is no such group, or no task has a level to reach.
    """
    groups: dict[str, list[StartRuns]] = {}
    for start in starts_of(runs):
        if all(run.gain is not None for run in start.runs):
            groups.setdefault(SeedGroup.of(start.runs).comparable, []).append(start)
    if not groups:
        raise RecordError(
            "no start can be compared with random rows: there is no random run of the same stream"
            " and settings",
            remedy="Add `--init random` to the `clinit train-head` command, or give the record of"
            " such a run too.",
        )
    gains = pl.concat(run.gain for run in runs if run.gain is not None)
    found = []
    for group in groups.values():
        own = pl.concat(run.gain for start in group for run in start.runs if run.gain is not None)
        seeds = sum(len(start.runs) for start in group)
        levels = own.drop_nulls("target").group_by("task").agg(pl.col("target").mean(), n=pl.len())
        for task, target, _ in levels.filter(n=seeds).sort("task").head(1).iter_rows():
            found.append(Race(task, target, group))
    if found:
        return found
    words = "; ".join(sorted(gains["reason"].drop_nulls().unique()) or [NO_STEP])
    raise RecordError(
        f"random rows set no level in any task, so starts cannot be timed: {words}",
        remedy="Train with test images of the new classes, and with more `--iterations`.",
    )


def efficiency(runs: Sequence[RunSummary]) -> Figure:
    """Return one panel per race, as wide as a column."""
    found = races(runs)
    most = max(len(race.starts) for race in found)
    figure, panels = style.panels(len(found), 2, 2.55 + 0.175 * most)
    for axes, race in zip(panels, found, strict=True):
        looks = [*style.looks_of(race.starts)]
        _panel(axes, race, looks)
        style.name_axes(axes, f"Iterations of task {race.task}", MEASURES["acc_new"].axis(runs))
        told = [(each.name, race.result(each)) for each in race.starts]
        names = [f"{shortened(name, 40 - len(result))}: {result}" for name, result in told]
        seeds = len(race.starts[0].runs)
        above = f"gain in task {race.task}" + (f", mean over {seeds} seeds" if seeds > 1 else "")
        place = axes.transAxes + ScaledTranslation(-0.42, -0.4, figure.dpi_scale_trans)
        look = {"loc": "upper left", "borderaxespad": 0, "labelspacing": 0.25, "alignment": "left"}
        look |= {"title": above, "bbox_to_anchor": (0, 0), "bbox_transform": place}
        style.legend(axes, names, looks, **look)
    return figure


def _panel(axes: Axes, race: Race, looks: Sequence[style.Look]) -> None:
    lines = [*map(race.line, race.starts)]
    last = max(1.0, *(float(line.at[-1]) for line in lines))
    axes.axhline(race.target, linestyle="--", color=style.GREY, linewidth=0.8, zorder=1)
    for line, look in zip(lines, looks, strict=True):
        style.draw_line(axes, line, look)
    axes.set_xlim(0, last)
    axes.set_ylim(0, 104)
    axes.set_yticks(range(0, 101, 20))
    words = f"{100 * SHARE:g} % of\nrandom's best"
    place = {"xycoords": axes.get_yaxis_transform(), "xytext": (3, -2), "va": "center"}
    style.remark(axes, words, (1, race.target), **place)


FORMATS = (".png", ".pdf", ".svg")
_FURTHER_FONTS = ("Noto Sans CJK JP", "Noto Sans CJK SC", "Noto Sans Arabic", "Noto Sans Hebrew")
"""Fonts for letters that matplotlib's font lacks, if they are installed."""


def save_figure(runs: Sequence[RunSummary], path: Path, name: str = "curves") -> None:
    """Write a figure to `path`; its suffix gives the format: png, pdf or svg.

    Raises:
        RecordError: If the suffix is another, there is no figure of this name, or the records lack
            its data.
        ClinitError: If the file cannot be written.
    """
    if path.suffix.lower() not in FORMATS:
        raise RecordError(
            f"cannot plot to {path}: its ending is {path.suffix or 'missing'!r}",
            remedy=f"Give a file name that ends in one of {', '.join(FORMATS)}.",
        )
    check_writable(path)
    content = picture(runs, name, path.suffix.lower()[1:])
    write_in_turn(path, lambda draft: draft.write_bytes(content))


def picture(
    runs: Sequence[RunSummary], name: str, form: str, dpi: float | Literal["figure"] = "figure"
) -> bytes:
    """Return a figure as the content of a file: png, pdf or svg."""
    installed = {font.name for font in fontManager.ttflist}
    fonts = ["DejaVu Sans", *(font for font in _FURTHER_FONTS if font in installed)]
    # Letters stay letters in PDF and SVG files: they can be searched and edited.
    letters = {"svg.fonttype": "none", "pdf.fonttype": 42, "font.family": fonts}
    with context(["default", letters]), warnings.catch_warnings():
        # A letter without a glyph is drawn as a box, so a warning would add nothing.
        warnings.filterwarnings("ignore", message="Glyph .* missing from")
        drawn = figure_of(name, runs)
        content = io.BytesIO()  # matplotlib's PDF writer raises its own error for a full disk
        drawn.savefig(content, format=form, dpi=dpi)
    return content.getvalue()


def save_figures(data: ByData, path: Path, names: Sequence[str]) -> list[str]:
    """Write each figure for each data set, to files named after `path`.

    Returns:
        A line per drawn figure with its file, and a line per figure whose data the records lack.

    Raises:
        RecordError: If no figure can be drawn.
    """
    told: list[str] = []
    errors: list[RecordError] = []
    for name in dict.fromkeys(names):
        for number, (heading, part) in enumerate(data.items(), start=1):
            of_figure = f"-{name}" if len(set(names)) > 1 else ""
            of_data = f"-data{number}" if heading else ""
            file = path.with_name(f"{path.stem}{of_figure}{of_data}{path.suffix}")
            what = "the curves are" if name == "curves" else f"{name} is"
            try:
                save_figure(part, file, name)
                told.append(f"{what} drawn in {file}")
            except RecordError as error:
                errors.append(error)
                where = f" for {heading}" if heading else ""
                told.append(f"{what} not drawn{where}: {error}. {error.remedy}")
    if len(errors) == len(told):
        raise errors[0]
    return told

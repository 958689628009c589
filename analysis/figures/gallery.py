"""The figures by name, and as files: PNG, PDF or SVG."""

from __future__ import annotations

import io
import warnings
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Literal

from matplotlib import style
from matplotlib.figure import Figure
from matplotlib.font_manager import fontManager

from clinit.analysis.figures import curves, efficiency
from clinit.analysis.figures.line import shortened, starts_of
from clinit.analysis.figures.style import looks_of, name_axes, panels
from clinit.analysis.report.measures import MEANS, Measure, measures_of
from clinit.analysis.report.run import VALUES, RunSummary
from clinit.analysis.report.settings import ByData
from clinit.errors import RecordError
from clinit.files.lock import write_in_turn

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
        return efficiency.figure(runs)
    (measure,) = measures_of([name])
    if measure.name in VALUES:
        return curves.figure(runs, [measure.name])
    return _dots(runs, measure)


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
    figure, (axes,) = panels(1, 1, 0.7 + 0.22 * len(starts))
    for place, (own, look) in enumerate(zip(known, looks_of(starts), strict=True)):
        axes.plot(own, [place] * len(own), "o", ms=3, alpha=0.5, color=look.colour)
        if own:
            axes.plot(fmean(own), place, look.marker, ms=7, color=look.colour)
    names = [shortened(start.name, 32) for start in starts]
    axes.set_yticks(range(len(names)), names, parse_math=False)
    axes.set_ylim(len(starts) - 0.5, -0.5)
    name_axes(axes, measure.axis(runs), "")
    return figure


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
    with style.context(["default", letters]), warnings.catch_warnings():
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

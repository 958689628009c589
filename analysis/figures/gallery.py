"""The figures by name, and as files: PNG, PDF or SVG."""

from __future__ import annotations

import io
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from matplotlib import style
from matplotlib.figure import Figure
from matplotlib.font_manager import fontManager

from clinit.analysis.figures import FigureName, curves, efficiency
from clinit.analysis.report.run import RunSummary
from clinit.analysis.report.settings import ByData
from clinit.errors import RecordError
from clinit.files.commit import commit_file
from clinit.files.lock import claim_file

GALLERY: Mapping[FigureName, Callable[[Sequence[RunSummary]], Figure]] = {
    FigureName.CURVES: curves.figure,
    FigureName.EFFICIENCY: efficiency.figure,
}
"""Each function raises `RecordError` if the records lack the data of its figure."""


def figure_of(name: str, runs: Sequence[RunSummary]) -> Figure:
    """Return the figure of this name for a paper.

    Raises:
        ValueError: If there is no figure of this name.
        RecordError: If the records lack its data.
    """
    if name not in set(FigureName):
        raise ValueError(f"there is no figure {name!r}: choose one of {', '.join(FigureName)}")
    return GALLERY[FigureName(name)](runs)


FORMATS = (".png", ".pdf", ".svg")
_FURTHER_FONTS = ("Noto Sans CJK JP", "Noto Sans CJK SC", "Noto Sans Arabic", "Noto Sans Hebrew")
"""Fonts for letters that matplotlib's font lacks, if they are installed."""


def save_figure(runs: Sequence[RunSummary], path: Path, name: str = "curves") -> None:
    """Write a figure to `path`; its suffix gives the format: png, pdf or svg.

    Raises:
        ValueError: If there is no figure of this name.
        RecordError: If the suffix is another, or the records lack the figure's data.
        ClinitError: If the file cannot be written.
    """
    if path.suffix.lower() not in FORMATS:
        raise RecordError(
            f"cannot plot to {path}: its ending is {path.suffix or 'missing'!r}",
            remedy=f"Give a file name that ends in one of {', '.join(FORMATS)}.",
        )
    installed = {font.name for font in fontManager.ttflist}
    fonts = ["DejaVu Sans", *(font for font in _FURTHER_FONTS if font in installed)]
    # Letters stay letters in PDF and SVG files: they can be searched and edited.
    letters = {"svg.fonttype": "none", "pdf.fonttype": 42, "font.family": fonts}
    with style.context(["default", letters]), warnings.catch_warnings():
        # A letter without a glyph is drawn as a box, so a warning would add nothing.
        warnings.filterwarnings("ignore", message="Glyph .* missing from")
        drawn = figure_of(name, runs)
        content = io.BytesIO()  # matplotlib's PDF writer raises its own error for a full disk
        drawn.savefig(content, format=path.suffix.lower()[1:])
    with claim_file(path, on_busy=lambda: None):
        commit_file(path, lambda draft: draft.write_bytes(content.getbuffer()))


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
            what = "the curves are" if name == FigureName.CURVES else f"{name} is"
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

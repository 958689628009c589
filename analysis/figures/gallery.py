"""The figures by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from clinit.analysis.figures import (
    accuracy_matrix,
    class_gains,
    collapse,
    confusions,
    cost,
    curves,
    efficiency,
    lambda_path,
    loss_spike,
)
from clinit.analysis.figures.names import FigureName
from clinit.analysis.report.run import RunSummary

if TYPE_CHECKING:
    from matplotlib.figure import Figure

GALLERY: Mapping[FigureName, Callable[[Sequence[RunSummary]], Figure]] = {
    FigureName.CURVES: curves.figure,
    FigureName.LOSS_SPIKE: loss_spike.figure,
    FigureName.EFFICIENCY: efficiency.figure,
    FigureName.ACCURACY_MATRIX: accuracy_matrix.figure,
    FigureName.CONFUSIONS: confusions.figure,
    FigureName.CLASS_GAINS: class_gains.figure,
    FigureName.LAMBDA_PATH: lambda_path.figure,
    FigureName.COLLAPSE: collapse.figure,
    FigureName.COST: cost.figure,
}
"""Each raises `RecordError` if the records lack what it shows."""


def figure_of(name: str, runs: Sequence[RunSummary]) -> Figure:
    """Return the figure of this name for a paper.

    Raises:
        ValueError: If there is none of this name.
        RecordError: If the records lack what it shows.
    """
    if name not in set(FigureName):
        raise ValueError(f"there is no figure {name!r}: choose one of {', '.join(FigureName)}")
    return GALLERY[FigureName(name)](runs)

"""The figures by name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from rich.text import Text

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
from clinit.analysis.run_summary import RunSummary

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@runtime_checkable
class Drawable(Protocol):
    """What the module of a figure offers; both raise `RecordError` where the records lack facts."""

    def figure(self, runs: Sequence[RunSummary]) -> Figure:
        """Return the figure of runs for a paper."""
        ...

    def draw(self, runs: Sequence[RunSummary], width: int) -> Text:
        """Return the figure of runs in characters, no line wider than `width`."""
        ...


GALLERY: Mapping[FigureName, Drawable] = {
    FigureName.CURVES: curves,
    FigureName.LOSS_SPIKE: loss_spike,
    FigureName.EFFICIENCY: efficiency,
    FigureName.ACCURACY_MATRIX: accuracy_matrix,
    FigureName.CONFUSIONS: confusions,
    FigureName.CLASS_GAINS: class_gains,
    FigureName.LAMBDA_PATH: lambda_path,
    FigureName.COLLAPSE: collapse,
    FigureName.COST: cost,
}


def drawable(name: str) -> Drawable:
    """Return the figure of this name.

    Raises:
        ValueError: If there is none.
    """
    if name not in set(FigureName):
        raise ValueError(f"there is no figure {name!r}: choose one of {', '.join(FigureName)}")
    return GALLERY[FigureName(name)]

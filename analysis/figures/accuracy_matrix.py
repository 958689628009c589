"""Accuracy on the classes of each task after each task: learning and forgetting."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from clinit.analysis.figures.line import Start, starts_of
from clinit.analysis.report.run import RunSummary

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.image import AxesImage

MOST_PRINTED = 20
"""Most tasks whose cells have their values written into them."""


@dataclass(frozen=True, slots=True)
class Matrix:
    """The accuracies of a start in percent, means over its seeds."""

    name: str
    tasks: tuple[int, ...]
    on: tuple[str, ...]
    """The columns: base classes, if they are tested, and classes of each task."""
    cells: tuple[tuple[float | None, ...], ...]
    """A row after each task. None if a class has not come yet, or has no test image."""


def matrix_of(start: Start) -> Matrix:
    """Return the matrix of a start."""
    seeds = [run.row() for run in start.runs]
    tasks = sorted({task["task"] for row in seeds for task in row["tasks"]})
    found: dict[tuple[int, int], list[float | None]] = {}
    for row in seeds:
        own = [task["task"] for task in row["tasks"]]
        for after, cells in zip(own, row["accuracy_matrix"], strict=True):
            for on, value in zip([0, *own], cells, strict=True):
                found.setdefault((after, on), []).append(value)
    means = {place: mean for place, values in found.items() if (mean := _mean(values)) is not None}
    columns = [0, *tasks] if any(on == 0 for _, on in means) else tasks
    cells = tuple(tuple(means.get((after, on)) for on in columns) for after in tasks)
    names = tuple(str(on or "base") for on in columns)
    return Matrix(start.name, tuple(tasks), names, cells)


def figure(runs: Sequence[RunSummary]) -> Figure:
    """Return one panel a start, all with one scale of colours."""
    from clinit.analysis.figures import style

    matrices = [matrix_of(start) for start in starts_of(runs)]
    tasks = max(len(matrix.tasks) for matrix in matrices)
    columns = min(len(matrices), 3 if tasks <= 6 else 2 if tasks <= 12 else 1)
    width = style.COLUMN if columns == 1 and tasks <= 6 else style.PAGE
    height = 0.62 + (width - 0.9) / columns * tasks / (tasks + 1) * 0.8
    grid = style.Grid.of(len(matrices), columns, height, above=0.35, width=width)
    known = [v for matrix in matrices for row in matrix.cells for v in row if v is not None]
    low = min(50.0, 10 * (min(known, default=0.0) // 10))
    for number, (axes, matrix) in enumerate(zip(grid.axes, matrices, strict=True)):
        image = _panel(axes, matrix, low, decimals=int(tasks <= 4))
        grid.head(number, matrix.name, beside=0.9 / columns)
        y = "After task" if number % columns == 0 else None
        grid.name_axes(number, x="Classes of task", y=y)
    scale = grid.figure.colorbar(image, ax=grid.axes, aspect=20 * grid.rows, pad=0.02)
    scale.set_label("Test accuracy (%)", fontsize=style.NORMAL)
    scale.ax.tick_params(labelsize=style.SMALL, width=0.6, length=2.5)
    scale.outline.set_linewidth(0.6)
    return grid.figure


def _panel(axes: Axes, matrix: Matrix, low: float, *, decimals: int) -> AxesImage:
    import numpy as np

    from clinit.analysis.figures import style

    values = np.array([[np.nan if v is None else v for v in row] for row in matrix.cells])
    image = axes.imshow(values, cmap="cividis", vmin=low, vmax=100, aspect="auto")
    axes.set_xticks(range(len(matrix.on)), matrix.on, fontsize=style.SMALL)
    axes.set_yticks(range(len(matrix.tasks)), map(str, matrix.tasks), fontsize=style.SMALL)
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    if len(matrix.tasks) > MOST_PRINTED:
        return image
    for (after, on), value in np.ndenumerate(values):
        if np.isfinite(value):
            is_dark = style.is_dark(image.cmap(image.norm(value)))  # type: ignore[arg-type]
            colour = "white" if is_dark else "black"
            text = _text(value, decimals)
            style.write(axes, on, after, text, ha="center", va="center", color=colour)
    return image


def _text(value: float, decimals: int) -> str:
    text = f"{value:.{decimals}f}"
    return "100" if text.startswith("100") else text


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None

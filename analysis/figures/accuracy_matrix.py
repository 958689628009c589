"""Accuracy on the classes of each task after each task: what is learnt and what is forgotten."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rich.text import Text

from clinit.analysis.figures.line import Start, starts_of
from clinit.analysis.metrics.accuracy import accuracy_before, accuracy_matrix
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
    cells: tuple[tuple[float | None, ...], ...]
    """A row after each task; columns: base classes, classes of each task. None where a class has
    not come yet, or has no test image."""
    before: float | None = None
    """That of the base head on the base classes, before task 1; None where no record holds it."""


def matrix_of(start: Start) -> Matrix:
    """Return the matrix of a start."""
    values: dict[tuple[int, int], list[float]] = {}
    tasks: set[int] = set()
    for run in start.runs:
        found = accuracy_matrix(run.record.evaluations, run.record.classes)
        tasks |= set(run.points["task"].to_list())
        for after, on, accuracy in found.iter_rows():
            if accuracy is not None:
                values.setdefault((after, on), []).append(accuracy)
    ordered = tuple(sorted(tasks))
    cells = tuple(
        tuple(_mean(values.get((after, on))) for on in (0, *ordered)) for after in ordered
    )
    known = [accuracy_before(run.record, run.points) for run in start.runs]
    before = _mean([value for value in known if value is not None])
    return Matrix(start.name, ordered, cells, before)


def figure(runs: Sequence[RunSummary]) -> Figure:
    """Return one panel a start, all with one scale of colours."""
    from clinit.analysis.figures import style

    matrices = [matrix_of(start) for start in starts_of(runs)]
    tasks = max(len(matrix.tasks) for matrix in matrices)
    columns = min(len(matrices), 3 if tasks <= 6 else 2 if tasks <= 12 else 1)
    rows = -(-len(matrices) // columns)
    width = style.COLUMN if columns == 1 and tasks <= 6 else style.PAGE
    inches = (width - 0.9) / columns
    height = 0.35 + rows * (0.62 + inches * tasks / (tasks + 1) * 0.8)
    result, panels = style.page(width, height, rows, columns)
    known = [v for matrix in matrices for row in matrix.cells for v in row if v is not None]
    low = min(50.0, 10 * (min(known, default=0.0) // 10))
    image = None
    for number, (axes, matrix) in enumerate(zip(panels, matrices, strict=False)):
        image = _panel(axes, matrix, low, decimals=int(tasks <= 4))
        style.head(axes, matrix.name, inches)
        is_last = number + columns >= len(matrices)
        style.name_axes(
            axes,
            x="Classes of task" if is_last else None,
            y="After task" if number % columns == 0 else None,
        )
    style.hide_rest(panels, len(matrices))
    assert image is not None
    scale = result.colorbar(image, ax=panels, aspect=20 * rows, pad=0.02)
    scale.set_label("Test accuracy (%)", fontsize=style.NORMAL)
    scale.ax.tick_params(labelsize=style.SMALL, width=0.6, length=2.5)
    scale.outline.set_linewidth(0.6)
    return result


def draw(runs: Sequence[RunSummary], width: int) -> Text:
    """Return one table a start; what does not fit the width stands below."""
    from clinit.analysis.figures import characters

    starts = starts_of(runs)
    matrices = [*map(matrix_of, starts)]
    parts: list[Text] = []
    for matrix in matrices:
        parts.append(characters.title(matrix.name, width))
        every = ("base", *map(str, matrix.tasks))
        fitting = max(1, (width - 13) // 6)
        for begin in range(0, len(every), fitting):
            chosen = range(begin, min(begin + fitting, len(every)))
            lines = [[("on classes of", 13), *((every[on], -5) for on in chosen)]]
            if matrix.before is not None and begin == 0:
                nothing = ((_text(None, 1), -5) for _ in chosen[1:])
                lines.append([("before task 1", 13), (_text(matrix.before, 1), -5), *nothing])
            for after, cells in zip(matrix.tasks, matrix.cells, strict=True):
                values = ((_text(cells[on], 1), -5) for on in chosen)
                lines.append([(f"after task {after}", 13), *values])
            parts += [Text(characters.row(line, width)) for line in lines]
        parts.append(Text())
    words = (
        f"Accuracy on {runs[0].measured_on} at the end of each task, among all classes seen so"
        " far, %."
    )
    if any(matrix.before is not None for matrix in matrices):
        words += " Before task 1: that of the base head."
    if any(len(start.runs) > 1 for start in starts):
        words += " Means over seeds."
    return Text("\n").join([*parts, characters.foot(words, width)])


def _panel(axes: Axes, matrix: Matrix, low: float, *, decimals: int) -> AxesImage:
    import numpy as np

    from clinit.analysis.figures import style

    values = np.array([[np.nan if v is None else v for v in row] for row in matrix.cells])
    image = axes.imshow(values, cmap="cividis", vmin=low, vmax=100, aspect="auto")
    axes.set_xticks(
        range(len(matrix.tasks) + 1), ["base", *map(str, matrix.tasks)], fontsize=style.SMALL
    )
    axes.set_yticks(range(len(matrix.tasks)), list(map(str, matrix.tasks)), fontsize=style.SMALL)
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    if len(matrix.tasks) > MOST_PRINTED:
        return image
    for (after, on), value in np.ndenumerate(values):
        if np.isfinite(value):
            is_dark = style.is_dark(image.cmap(image.norm(value)))  # type: ignore[arg-type]
            style.write(
                axes,
                on,
                after,
                _text(value, decimals),
                ha="center",
                va="center",
                color="white" if is_dark else "black",
            )
    return image


def _text(value: float | None, decimals: int) -> str:
    if value is None:
        return "-"
    text = f"{value:.{decimals}f}"
    return "100" if text.startswith("100") else text


def _mean(values: Sequence[float] | None) -> float | None:
    return sum(values) / len(values) if values else None

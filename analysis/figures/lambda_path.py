"""What each lambda was judged by, task by task, and which one was chosen."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from clinit.analysis.figures.line import Line, finite_values, seed_of, starts_of
from clinit.analysis.report.run import RunSummary
from clinit.errors import RecordError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MEASURES = {"leave_one_out_loss": "leave-one-out loss", "held_out_error": "held-out error"}


@dataclass(frozen=True, slots=True, eq=False)
class Path:
    """The judgement of the lambdas of one task."""

    task: int
    line: Line
    """Over log10 of lambda, those above 0."""
    chosen: float | None
    """log10 of the lambda that was chosen; None where no lambda could be told from rows of zeros,
    or the record does not say."""

    @property
    def chosen_value(self) -> float | None:
        """What the chosen lambda was judged by; None where it is not one of those on the line."""
        if self.chosen is None:
            return None
        near = np.flatnonzero(np.isclose(self.line.at, self.chosen))
        return float(self.line.mean[near[0]]) if len(near) else None


@dataclass(frozen=True, slots=True, eq=False)
class Paths:
    """The judgements of one run."""

    name: str
    measure: str
    """What the lambdas were judged by, in words."""
    tasks: tuple[Path, ...]


def paths_of(run: RunSummary, name: str) -> Paths | None:
    """Return the judgements of a run; None where it did not choose its lambda."""
    found, measures = list[Path](), list[str]()
    for task in run.record.info["tasks"]:
        curve: dict[str, Any] = dict(task.get("lambda_curve") or {})
        measure = next((each for each in MEASURES if each in curve), None)
        if measure is None:
            continue
        measures.append(MEASURES[measure])
        points = [
            (np.log10(lam), float("nan") if value is None else value)
            for lam, value in zip(curve["lam"], curve[measure], strict=False)
            if lam is not None and lam > 0
        ]
        places, values = [at for at, _ in points], [value for _, value in points]
        lam = (task.get("initialisation") or {}).get("lam")
        chosen = float(np.log10(lam)) if lam else None
        found.append(Path(task["task"], Line.of(places, [values]), chosen))
    return Paths(name, measures[0], tuple(found)) if found else None


def figure(runs: Sequence[RunSummary]) -> Figure:
    """Return one panel per start, with one line per task."""
    from clinit.analysis.figures import strokes, style

    found = _found(runs)
    columns = min(len(found), 3)
    rows = -(-len(found) // columns)
    width = style.COLUMN if columns == 1 else style.PAGE
    tasks = sorted({path.task for paths in found for path in paths.tasks})
    names = [f"task {task}" for task in tasks]
    looks = dict(zip(tasks, style.ordered_looks(len(tasks)), strict=True))
    height = 0.3 + 1.9 * rows + 0.16 * style.legend_rows(names, width)
    result, panels = style.page(width, height, rows, columns)
    for number, (axes, paths) in enumerate(zip(panels, found, strict=False)):
        style.head(axes, paths.name, width / columns - 0.3)
        for path in paths.tasks:
            look = looks[path.task]
            strokes.draw_line(axes, path.line, look, (0, 0), marks=0)
            if path.chosen is not None and path.chosen_value is not None:
                axes.plot(path.chosen, path.chosen_value, look.marker, ms=5, color=look.colour)
        strokes.scale_height(axes, finite_values([[path.line for path in paths.tasks]]))
        strokes.power_ticks(axes, [path.line for path in paths.tasks])
        is_last = number + columns >= len(found)
        style.name_axes(
            axes, x="λ (mark: chosen)" if is_last else None, y=paths.measure.capitalize()
        )
    style.hide_rest(panels, len(found))
    style.legend(result, names, style.line_handles(list(looks.values())), width)
    return result


def _found(runs: Sequence[RunSummary]) -> list[Paths]:
    starts = starts_of(runs)
    found = []
    for start in starts:
        name = f"{start.name}, {seed_of(start.first)}" if len(start.runs) > 1 else start.name
        if (paths := paths_of(start.first, name)) is not None:
            found.append(paths)
    if not found:
        raise RecordError(
            "no run chose its lambda, so that there is nothing that lambdas were judged by",
            remedy="Train with `clinit train-head --init least-square --lambda auto`, the default:"
            " it records what each lambda was judged by.",
        )
    return found

"""Neural collapse NC1 to NC4 and the distance from least squares, at the end of each task."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from clinit.analysis.figures.line import Line, Start, finite_values, starts_of
from clinit.analysis.report.run import RunSummary
from clinit.errors import RecordError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MEASURES = {
    "NC1": "nc1",
    "NC2": "nc2",
    "NC3": "nc3",
    "NC4": "nc4",
    "D_LS": "d_ls",
    "D_LS, relative": "d_ls_relative",
}
FLOORS = {"nc2": "nc2_floor", "nc3": "nc3_floor"}
_MATH = {"D_LS": r"$D_{\mathrm{LS}}$", "D_LS, relative": r"$D_{\mathrm{LS}}$, relative"}


def line_of(start: Start, measure: str) -> Line:
    """Return a measure at the end of the tasks at which each seed has one."""
    seeds = [_by_task(run, measure) for run in start.runs]
    tasks = sorted(set.intersection(*map(set, seeds)))
    return Line.of(tasks, [[seed[task] for task in tasks] for seed in seeds])


def floor_of(runs: Sequence[RunSummary], measure: str) -> Line | None:
    """Return the least that a head of this width and number of classes can have; None if 0.

    Runs of different widths or streams have different floors: it is then the least of them.
    """
    if measure not in FLOORS:
        return None
    found = [_by_task(run, FLOORS[measure]) for run in runs]
    tasks = sorted({task for each in found for task in each})
    least = [min(each[task] for each in found if task in each) for task in tasks]
    return Line.of(tasks, [least]) if any(value > 0 for value in least) else None


def figure(runs: Sequence[RunSummary]) -> Figure:
    """Return a panel for each measure, in the text width of two columns."""
    from clinit.analysis.figures import strokes, style

    diagnosed = _diagnosed(runs)
    starts = starts_of(diagnosed)
    looks = style.looks_of(starts)
    names = [start.name for start in starts]
    height = 3.3 + 0.16 * style.legend_rows(names, style.PAGE)
    result, panels = style.page(style.PAGE, height, 2, 3, sharex=True)
    tasks = _tasks(diagnosed)
    for number, (axes, (label, measure)) in enumerate(zip(panels, MEASURES.items(), strict=True)):
        lines = [line_of(start, measure) for start in starts]
        floor = floor_of(diagnosed, measure)
        for line, look in zip(lines, looks, strict=True):
            strokes.draw_line(axes, line, look, (min(tasks), max(tasks)))
        if floor is not None:
            _draw_floor(axes, floor)
        strokes.scale_height(axes, finite_values([lines, [] if floor is None else [floor]]))
        strokes.number_tasks(axes, tasks)
        style.name_axes(axes, x="After task" if number >= 3 else None, y=_MATH.get(label, label))
    style.legend(result, names, style.line_handles(looks), style.PAGE)
    return result


def _draw_floor(axes: Any, floor: Line) -> None:
    from clinit.analysis.figures import style

    axes.plot(floor.at, floor.mean, "--", color=style.GREY, linewidth=0.9, marker="_", zorder=1)
    axes.annotate(
        "floor",
        (floor.at[0], floor.mean[0]),
        xytext=(4, -2),
        va="top",
        textcoords="offset points",
        fontsize=style.SMALL,
        color=style.INK,
    )


def _diagnosed(runs: Sequence[RunSummary]) -> list[RunSummary]:
    found = [run for run in runs if any(task.get("diagnosis") for task in run.record.info["tasks"])]
    if not found:
        raise RecordError(
            "no run was measured at the ends of its tasks, so that there is no NC1 to NC4 and no"
            " D_LS to draw",
            remedy="Train with `clinit train-head --diagnose`: it records them.",
        )
    return found


def _tasks(runs: Sequence[RunSummary]) -> list[int]:
    tasks = (task for run in runs for task in run.record.info["tasks"] if task.get("diagnosis"))
    return sorted({task["task"] for task in tasks})


def _by_task(run: RunSummary, name: str) -> dict[int, float]:
    values = {
        task["task"]: (task.get("diagnosis") or {}).get(name) for task in run.record.info["tasks"]
    }
    return {
        task: float(value)
        for task, value in values.items()
        if isinstance(value, int | float) and np.isfinite(value)
    }

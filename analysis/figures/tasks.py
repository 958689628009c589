"""Figures of what happens at single tasks: the loss spike, collapse."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from clinit.analysis.figures import style
from clinit.analysis.figures.curves import LOSS
from clinit.analysis.figures.line import (
    Line,
    Start,
    finite_values,
    lines_of,
    log_floor,
    starts_of,
)
from clinit.analysis.report.run import RunSummary
from clinit.errors import RecordError

STEPS = 100
"""The loss spike is drawn over at most this many steps of a task."""
COLLAPSE = {
    "nc1": "NC1",
    "nc2": "NC2",
    "nc3": "NC3",
    "nc4": "NC4",
    "d_ls": r"$D_{\mathrm{LS}}$",
    "d_ls_relative": r"$D_{\mathrm{LS}}$, relative",
}
FLOORS = {"nc2": "nc2_floor", "nc3": "nc3_floor"}


def first_steps(start: Start) -> dict[int, Line]:
    """Return the loss of new rows in each of the first batches of each task."""
    found = {}
    for task, line in lines_of([run.record.steps for run in start.runs], "loss_new").items():
        kept = line.at < STEPS
        found[task] = Line(line.at[kept], line.mean[kept], line.low[kept], line.high[kept])
    return found


def loss_spike_figure(runs: Sequence[RunSummary]) -> Figure:
    """Return one panel a task, all on one scale."""
    stepped = [run for run in runs if len(run.record.steps)]
    if not stepped:
        raise RecordError(
            "no run took a step, so that there is no loss to draw step by step",
            remedy="Train with `clinit train-head --iterations N`, N above 0, and a --method that"
            " trains its head, such as rehearsal.",
        )
    starts = starts_of(stepped)
    lines = [first_steps(start) for start in starts]
    tasks = sorted({task for each in lines for task in each})
    looks, names = style.looks_of(starts), [start.name for start in starts]
    grid = style.Grid.of(len(tasks), 5, 1.6, names=names, sharey=True)
    last = max(1.0, *(float(line.at[-1]) for each in lines for line in each.values()))
    floor = log_floor(each.values() for each in lines)
    for number, (axes, task) in enumerate(zip(grid.axes, tasks, strict=True)):
        grid.head(number, f"task {task}")
        for each, look in zip(lines, looks, strict=True):
            if task in each:
                line = each[task].raised(floor)
                style.draw_line(axes, line, look, (0, last), marks=3)
        axes.set_xlim(0, last)
        y = LOSS if number % grid.columns == 0 else None
        grid.name_axes(number, x="Step of the task", y=y)
    style.scale_losses(grid.axes[0], [list(each.values()) for each in lines], floor)
    grid.legend(names, style.line_handles(looks))
    return grid.figure


def collapse_line(start: Start, measure: str) -> Line:
    """Return a measure at the ends of the tasks for which every seed has a value."""
    seeds = [_by_task(run, measure) for run in start.runs]
    tasks = sorted(set.intersection(*map(set, seeds)))
    return Line.of(tasks, [[seed[task] for task in tasks] for seed in seeds])


def floor_of(runs: Sequence[RunSummary], measure: str) -> Line | None:
    """Return the least possible value for the width and number of classes; None if it is 0.

    If the floors of the runs differ, the lowest one is returned.
    """
    found = [_by_task(run, FLOORS.get(measure, "")) for run in runs]
    tasks = sorted({task for each in found for task in each})
    least = [min(each[task] for each in found if task in each) for task in tasks]
    return Line.of(tasks, [least]) if any(value > 0 for value in least) else None


def collapse_figure(runs: Sequence[RunSummary]) -> Figure:
    """Return a panel for each measure, in the text width of two columns."""
    diagnosed = [run for run in runs if run.is_diagnosed]
    if not diagnosed:
        raise RecordError(
            "no run was measured at the ends of its tasks, so that there is no NC1 to NC4 and no"
            " D_LS to draw",
            remedy="Train with `clinit train-head --diagnose`: it records them.",
        )
    starts = starts_of(diagnosed)
    looks, names = style.looks_of(starts), [start.name for start in starts]
    grid = style.Grid.of(len(COLLAPSE), 3, 1.5, names=names, sharex=True)
    told = [task for run in diagnosed for task in run.record.info["tasks"]]
    tasks = sorted({task["task"] for task in told if task.get("diagnosis")})
    for number, (axes, (measure, label)) in enumerate(
        zip(grid.axes, COLLAPSE.items(), strict=True)
    ):
        lines = [collapse_line(start, measure) for start in starts]
        for line, look in zip(lines, looks, strict=True):
            style.draw_line(axes, line, look, (tasks[0], tasks[-1]))
        if (floor := floor_of(diagnosed, measure)) is not None:
            _draw_floor(axes, floor)
            lines.append(floor)
        style.scale_height(axes, finite_values([lines]))
        axes.xaxis.set_major_locator(MaxNLocator(min(len(tasks), 8), integer=True, min_n_ticks=1))
        axes.set_xlim(tasks[0] - 0.3, tasks[-1] + 0.3)
        grid.name_axes(number, x="After task", y=label)
    grid.legend(names, style.line_handles(looks))
    return grid.figure


def _draw_floor(axes: Axes, floor: Line) -> None:
    axes.plot(floor.at, floor.mean, "--", color=style.GREY, linewidth=0.9, marker="_", zorder=1)
    style.remark(axes, "floor", (floor.at[0], floor.mean[0]), xytext=(4, -2), va="top")


def _by_task(run: RunSummary, name: str) -> dict[int, float]:
    told: Sequence[Any] = run.record.info["tasks"]
    values = {task["task"]: (task.get("diagnosis") or {}).get(name) for task in told}
    return {
        task: float(value)
        for task, value in values.items()
        if isinstance(value, int | float) and np.isfinite(value)
    }

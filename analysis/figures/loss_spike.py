"""The loss spike: the first steps of each task, step by step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from clinit.analysis.figures.curves import LOSS
from clinit.analysis.figures.line import Line, Start, lines_of, log_floor, starts_of
from clinit.analysis.report.run import RunSummary
from clinit.errors import RecordError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

STEPS = 100
"""Most steps of a task that are drawn."""


def first_steps(start: Start, steps: int = STEPS) -> dict[int, Line]:
    """Return the loss of new rows in each of the first batches of each task."""
    lines = lines_of([run.record.steps for run in start.runs], "loss_new")
    return {task: _until(line, steps) for task, line in sorted(lines.items())}


def figure(runs: Sequence[RunSummary]) -> Figure:
    """Return one panel a task, all on one scale."""
    from clinit.analysis.figures import strokes, style

    starts, tasks = _trained(runs)
    lines = [first_steps(start) for start in starts]
    looks = style.looks_of(starts)
    names = [start.name for start in starts]
    columns = min(len(tasks), 5)
    rows = -(-len(tasks) // columns)
    width = style.COLUMN if columns == 1 else style.PAGE
    height = 0.3 + 1.6 * rows + 0.16 * style.legend_rows(names, width)
    result, panels = style.page(width, height, rows, columns, sharey=True)
    last = _last(lines)
    floor = log_floor(each.values() for each in lines)
    for number, (axes, task) in enumerate(zip(panels, tasks, strict=False)):
        style.head(axes, f"task {task}", width / columns)
        for each, look in zip(lines, looks, strict=True):
            if task in each:
                line = each[task].raised(floor)
                strokes.draw_noisy_line(axes, line, look, (0, last), lines=len(starts), marks=3)
        axes.set_xlim(0, last)
        style.name_axes(
            axes,
            x="Step of the task" if number + columns >= len(tasks) else None,
            y=LOSS if number % columns == 0 else None,
        )
    style.hide_rest(panels, len(tasks))
    strokes.scale_losses(panels[0], [list(each.values()) for each in lines], floor)
    style.legend(result, names, style.line_handles(looks), width)
    return result


def _trained(runs: Sequence[RunSummary]) -> tuple[list[Start], list[int]]:
    """Return the starts that took steps, and their tasks."""
    stepped = [run for run in runs if len(run.record.steps)]
    if not stepped:
        raise RecordError(
            "no run took a step, so that there is no loss to draw step by step",
            remedy="Train with `clinit train-head --iterations N`, N above 0, and a --method that"
            " trains its head, such as rehearsal.",
        )
    tasks = {task for run in stepped for task in run.record.steps["task"].unique().to_list()}
    return starts_of(stepped), sorted(tasks)


def _until(line: Line, steps: int) -> Line:
    kept = np.flatnonzero(line.at < steps)
    return Line(line.at[kept], line.mean[kept], line.low[kept], line.high[kept])


def _last(lines: Sequence[dict[int, Line]]) -> float:
    return max(1.0, *(float(line.at[-1]) for each in lines for line in each.values()))

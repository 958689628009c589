"""Loss and accuracy on the new task over iterations.

The loss is that of the new rows in each batch, before each update: every step, so that no spike
is lost. The accuracy is that of the evaluation points. All tasks share one axis of cumulative
iterations; a line ends at a task switch, because the values before and behind it belong to
different tasks. The scale of the loss is linear unless that hides a start, see `log_floor`. Heads
that are solved as a whole take no step: their loss is that of the evaluation.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, repeat
from typing import TYPE_CHECKING

import polars as pl
from rich.text import Text

from clinit.analysis.figures.line import (
    Line,
    Start,
    best_of,
    lines_of,
    log_floor,
    seeds_remark,
    starts_of,
)
from clinit.analysis.report.run import RunSummary

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LOSS = "Training loss of new classes"
ACCURACY, HELD_OUT = "Test accuracy, new classes (%)", "Held-out accuracy, new classes (%)"
MOST_DRAWN = 5
"""Most starts that are told apart in the terminal."""
MOST_MARKED = 60
"""Most evaluation points of a start that are marked each."""


@dataclass(frozen=True, slots=True)
class Switches:
    """Where tasks end, on cumulative iterations."""

    ends: tuple[int, ...]
    """Ascending; the last one is the end of the longest run."""
    are_shared: bool
    """Whether all runs end their tasks there; if not, the tasks of a place have no one number."""


def loss_lines(start: Start) -> dict[int, Line]:
    """Return the loss of new rows in each batch over the steps of each task."""
    steps = lines_of([run.record.steps for run in start.runs], "loss_new")
    evaluated = lines_of([run.points for run in start.runs], "loss_new")
    return {task: steps.get(task, line) for task, line in {**steps, **evaluated}.items()}


def accuracy_lines(start: Start) -> dict[int, Line]:
    """Return the accuracy on the new classes at the evaluation points of each task."""
    return lines_of([run.points for run in start.runs], "acc_new")


def accuracy_title(runs: Sequence[RunSummary]) -> str:
    """Return what the accuracy is measured on, in the words above its panel."""
    return HELD_OUT if all(run.is_held_out for run in runs) else ACCURACY


def ends_of(run: RunSummary) -> dict[int, int]:
    """Return the cumulative iterations at which the tasks of a run end."""
    lengths = run.points.group_by("task").agg(pl.col("iteration").max()).sort("task")
    ends: list[int] = lengths["iteration"].cum_sum().to_list()
    return dict(zip(lengths["task"].to_list(), ends, strict=True))


def switches(runs: Sequence[RunSummary]) -> Switches:
    """Return where tasks end; runs without a step, or of fewer tasks, change nothing."""
    every = [tuple(ends_of(run).values()) for run in runs]
    longest = max(every, key=lambda ends: (ends[-1], len(ends)))
    if all(ends == longest[: len(ends)] or ends[-1] == 0 for ends in every):
        return Switches(longest, are_shared=True)
    inner = {end for ends in every for end in ends[:-1] if end}
    return Switches((*sorted(inner - {longest[-1]}), longest[-1]), are_shared=False)


def cumulative(start: Start, lines: Mapping[int, Line], shared: Switches) -> list[Line]:
    """Return the lines of the tasks of a start on cumulative iterations.

    Where it takes no step, its points stand where the tasks of the others begin.
    """
    ends = ends_of(start.first)
    follows = shared.ends if shared.are_shared and not any(ends.values()) else ends.values()
    begins = dict(zip(ends, chain([0], follows, repeat(shared.ends[-1])), strict=False))
    return [line.moved(begins[task]) for task, line in sorted(lines.items())]


def figure(runs: Sequence[RunSummary], *, columns: int | None = None) -> Figure:
    """Return two panels side by side, in the text width of two columns.

    Args:
        runs: Whose curves are drawn.
        columns: Into how many a line is thinned; None: as many as are seen.
    """
    from clinit.analysis.figures import strokes, style

    columns = columns or strokes.MOST_COLUMNS

    starts = starts_of(runs)
    looks = style.looks_of(starts)
    names = [start.name for start in starts]
    height = 2.3 + 0.16 * style.legend_rows(names, style.PAGE)
    result, (left, right) = style.page(style.PAGE, height, 1, 2)
    shared = switches(runs)
    span = (0, max(shared.ends[-1], 1))
    losses = [cumulative(start, loss_lines(start), shared) for start in starts]
    floor = log_floor(losses)
    for axes, title in ((left, LOSS), (right, accuracy_title(runs))):
        strokes.mark_tasks(axes, shared.ends, are_numbered=shared.are_shared)
        style.name_axes(axes, x="Iterations", y=title)
    for start, lines, look in zip(starts, losses, looks, strict=True):
        for line in lines:
            raised = line.raised(floor)
            strokes.draw_noisy_line(
                left, raised, look, span, lines=len(starts), marks=2, columns=columns
            )
        accuracies = cumulative(start, accuracy_lines(start), shared)
        marks = None if sum(len(line.at) for line in accuracies) <= MOST_MARKED else 2
        for line in accuracies:
            strokes.draw_line(right, line, look, span, marks=marks, columns=columns)
    strokes.scale_losses(left, losses, floor)
    right.set_ylim(0, 100)
    style.legend(result, names, style.line_handles(looks), style.PAGE)
    return result


def draw(runs: Sequence[RunSummary], width: int) -> Text:
    """Return the loss above the accuracy, `width` characters wide."""
    from clinit.analysis.figures import characters

    starts = starts_of(runs)
    drawn = best_of(starts, MOST_DRAWN)
    shared = switches(runs)
    ends = shared.ends
    ticks = [(end, str(end)) for end in (0, *ends)]
    span = (0, max(ends[-1], 1))
    losses = [cumulative(start, loss_lines(start), shared) for start in drawn]
    floor = log_floor(losses)
    raised = [[line.raised(floor) for line in lines] for lines in losses]
    accuracies = [cumulative(start, accuracy_lines(start), shared) for start in drawn]
    is_log = floor is not None
    plots = (
        characters.Plot(f"{LOSS}, each step", width, span, ticks, ends[:-1], log=is_log).of(raised),
        characters.Plot(accuracy_title(runs), width, span, ticks, ends[:-1], log=False).of(
            accuracies
        ),
    )
    whose = "" if shared.are_shared else " of some runs"
    foot = f"Iterations over all tasks; a vertical line is a task switch{whose}."
    if len(drawn) < len(starts):
        foot += f" The {len(drawn)} of {len(starts)} settings with the best A_all; --plot FILE"
        foot += " draws all."
    parts = [
        characters.legend([start.name for start in drawn], width),
        *(plot for plot in plots if plot is not None),
        characters.foot(f"{foot} {seeds_remark(starts)}", width),
    ]
    return Text("\n").join(parts)

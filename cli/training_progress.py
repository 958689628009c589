"""The progress bar of training, and the notes beside it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from clinit.cli.console import err, note, say

if TYPE_CHECKING:
    from clinit.headtrain.events import Event, Initialised, Observer
    from clinit.headtrain.init import LambdaCurve


@contextmanager
def training_progress(*, verbose: bool) -> Iterator[Observer]:
    """Show the events of an experiment; with `verbose`, what each initialisation chose too."""
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
    )

    from clinit.headtrain import events

    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(bar_width=None),
        MofNCompleteColumn(),
        TextColumn("{task.fields[unit]}"),
        TimeRemainingColumn(compact=True),
        TextColumn("{task.fields[losses]}"),
        console=err,
        disable=not err.is_terminal,
    )
    with bar:
        steps = bar.add_task("Preparing", total=None, losses="", unit="steps")

        def observe(event: Event) -> None:
            match event:
                case events.Noted(text):
                    note(text)
                case events.LambdaChosen(task, curve):
                    if verbose:
                        say(_chosen(task, curve))
                case events.TaskStarted(task, tasks, iterations):
                    bar.update(steps, description=f"Task {task}/{tasks}", total=tasks * iterations)
                case events.Stepped(done):
                    bar.advance(steps, done)
                case events.Progressed(what, done, total):
                    bar.update(steps, completed=done, total=total, unit=what)
                case events.Evaluated():
                    losses = " ".join(f"{value:.2f}" for value in event.loss_new.values())
                    bar.update(steps, losses=f"new-task loss {losses}")
                case events.Initialised():
                    if verbose:
                        say(_initialised(event))

        yield observe


def _chosen(task: int, curve: LambdaCurve) -> str:
    """Print which lambda was chosen, with the curve from the least lambda to the largest."""
    low, high = min(curve.errors), max(curve.errors)
    steps = [int(7 * (error - low) / (high - low or 1)) for error in curve.errors]
    drawn = "".join("▁▂▃▄▅▆▇█"[step] for step in steps)
    return (
        f"Task {task}, lambda {curve.best:g}: {curve.measure} {low:.4g} in"
        f" {curve.lams[0]:g} {drawn} {curve.lams[-1]:g} (at most {high:.4g})"
    )


def _initialised(event: Initialised) -> str:
    start = event.start
    line = f"Task {event.task}, {event.head_id}: factor {start.factor:.4g}, shift {start.shift:.4g}"
    if start.loss_before is not None and start.loss_after is not None:
        line += (
            f", class-balanced loss {start.loss_before:.4f} -> {start.loss_after:.4f}"
            f" in {start.steps} steps"
        )
    if start.library is None:
        return line
    spent = ", ".join(
        f"{phase} {value:.3f} s" for phase, value in event.seconds.items() if value >= 0.0005
    )
    return f"{line}; {start.library}: {spent}"

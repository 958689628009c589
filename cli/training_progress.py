"""The progress bar of training, and the notes beside it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from clinit.cli.console import note, say
from clinit.cli.progress import progress
from clinit.words import number_of

if TYPE_CHECKING:
    from clinit.headtrain.events import Event, Initialised, Observer
    from clinit.headtrain.statistics.lambda_curve import LambdaCurve
    from clinit.headtrain.sweep.plan import SweepEvent, SweepObserver


_FEW = 4
"""Heads whose losses are shown one by one."""


@contextmanager
def run_progress(place: Path | None, *, verbose: bool) -> Iterator[Observer]:
    """Show the events of the run that is recorded in `place`; see `training_progress`."""
    if place is not None:
        say(f"{place.name}:")
    with training_progress(verbose=verbose) as observer:
        yield observer


@contextmanager
def training_progress(*, verbose: bool) -> Iterator[Observer]:
    """Show the events of training, each note once.

    Args:
        verbose: Whether to show what each initialisation chose too.
    """
    from clinit.headtrain import events

    with progress() as shown:
        line = shown.line("Preparing")
        steps, total = 0, 0
        said: set[str] = set()

        def observe(event: Event) -> None:
            nonlocal steps, total
            match event:
                case events.BankStarted(bank, number, banks, recorded):
                    line.title, line.unit, line.more, steps = "Preparing", "", "", 0
                    line.count(0, None)
                    if banks > 1:
                        say(f"Seed {bank[0].stream.seed} ({number} of {banks}):")
                    if recorded:
                        say(
                            "All heads are trained once more: side by side, the others get the"
                            " same numbers"
                        )
                case events.Noted(text):
                    if text not in said:
                        said.add(text)
                        note(text)
                case events.LambdaChosen(task, curve):
                    if verbose:
                        say(_chosen(task, curve))
                case events.TaskStarted(task, tasks, iterations):
                    line.title, line.unit = f"Task {task}/{tasks}", "steps"
                    total = tasks * iterations
                    line.count(steps, total)
                case events.Stepped(done):
                    steps += done
                    line.count(steps, total)
                case events.Progressed():
                    several = event.total > 1  # of one thing, a count says nothing
                    line.unit, line.more = (event.what, "") if several else ("", event.what)
                    line.count(event.done, event.total if several else None)
                case events.Evaluated():
                    line.more = f"new-task loss {_losses(event.loss_new)}"
                case events.Initialised():
                    if verbose:
                        say(_initialised(event))

        yield observe


def _losses(losses: Mapping[str, float]) -> str:
    """Return the losses of a few heads by name, the range of many."""
    if len(losses) > _FEW:
        return f"{_loss(min(losses.values()))} to {_loss(max(losses.values()))}"
    if len(losses) == 1:
        return _loss(*losses.values())
    return ", ".join(f"{name} {_loss(value)}" for name, value in losses.items())


def _loss(value: float) -> str:
    return "< 0.001" if 0 <= value < 0.001 else f"{value:.3g}"


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


@contextmanager
def sweep_progress(total: int, done: int) -> Iterator[SweepObserver]:
    """Show how many of `total` runs are recorded; within a bank the bar moves with its steps."""
    from clinit.headtrain import events
    from clinit.headtrain.sweep import plan as runner

    said: set[str] = set()
    recorded, share = done, 0.0
    with progress() as shown:
        line = shown.line(f"{done:,}/{total:,} runs")

        def observe(event: SweepEvent) -> None:
            nonlocal recorded, share
            match event:
                case events.Noted(text):
                    if text not in said:
                        said.add(text)
                        note(text)
                case events.BankStarted(runs, recorded=again):
                    steps = runs[0].stream.tasks * runs[0].stream.iterations
                    share = (len(runs) - again) / max(1, steps)
                    line.more = f"bank of {len(runs)}"
                    line.count(line.done, total - done)
                case events.Stepped(steps):
                    line.count(line.done + share * steps, total - done)
                case runner.RunsRecorded(runs):
                    recorded += runs
                    line.title = f"{recorded:,}/{total:,} runs"
                    line.count(recorded - done, total - done)
                    shown.reached(f"{recorded:,} of {number_of(total, 'run')} recorded")
                case runner.BankHalved(runs):
                    note(
                        f"a bank of {number_of(runs, 'run')} does not fit into memory: it is halved"
                    )

        yield observe

"""Progress bars of extraction, training and sweeps, with the notes printed above them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from clinit.cli.frame.console import note, say
from clinit.cli.frame.progress import progress
from clinit.words import number_of

if TYPE_CHECKING:
    from clinit.extract.work.split_run import Progress
    from clinit.headtrain.protocol.events import Event, Observer
    from clinit.headtrain.protocol.sweep.plan import SweepEvent, SweepObserver


@contextmanager
def training_progress(place: Path | None = None, *, notes: bool = True) -> Iterator[Observer]:
    """Show the events of training, each note only once; `place` is the folder of the run."""
    from clinit.headtrain.protocol import events

    if place is not None:
        say(f"{place.name}:")
    with progress() as shown:
        line = shown.line("Preparing")
        steps, total = 0, 0
        note_once = cache(note)

        def observe(event: Event) -> None:
            nonlocal steps, total
            match event:
                case events.BankStarted(bank, number, banks):
                    line.title, line.unit, line.more, steps = "Preparing", "", "", 0
                    line.count(0, None)
                    if banks > 1:
                        say(f"Seed {bank[0].stream.seed} ({number} of {banks}):")
                case events.Noted(text) if notes:
                    note_once(text)
                case events.TaskStarted(task, tasks, iterations):
                    line.title, line.unit = f"Task {task}/{tasks}", "steps"
                    total = tasks * iterations
                    line.count(steps, total)
                case events.Stepped(done):
                    steps += done
                    line.count(steps, total)
                case events.Progressed():
                    if event.total > 1:
                        line.unit, line.more = event.what, ""
                        line.count(event.done, event.total)
                    else:  # a count of a single thing has no information
                        line.unit, line.more = "", event.what
                        line.count(event.done, None)
                case events.Evaluated():
                    losses = event.loss_new.values()
                    told = [f"{loss:.3g}" for loss in sorted({min(losses), max(losses)})]
                    line.more = f"new-task loss {' to '.join(told)}"

        yield observe


@contextmanager
def sweep_progress(total: int, done: int) -> Iterator[SweepObserver]:
    """Show how many of `total` runs are recorded; the bar also moves with the steps of a bank."""
    from clinit.headtrain.protocol import events
    from clinit.headtrain.protocol.sweep import plan

    recorded, share = done, 0.0
    note_once = cache(note)
    with progress() as shown:
        line = shown.line(f"{done:,}/{total:,} runs")

        def observe(event: SweepEvent) -> None:
            nonlocal recorded, share
            match event:
                case events.Noted(text):
                    note_once(text)
                case events.BankStarted(runs):
                    share = len(runs) / max(1, runs[0].stream.tasks * runs[0].stream.iterations)
                    line.more = f"bank of {len(runs)}"
                    line.count(line.done, total - done)
                case events.Stepped(steps):
                    line.count(line.done + share * steps, total - done)
                case plan.RunsRecorded(runs):
                    recorded += runs
                    line.title = f"{recorded:,}/{total:,} runs"
                    line.count(recorded - done, total - done)
                    shown.reached(f"{recorded:,} of {number_of(total, 'run')} recorded")

        yield observe


@contextmanager
def extraction_progress() -> Iterator[Callable[[Progress], None]]:
    """Show a bar for the split or view that the extraction computes."""
    with progress() as shown:

        def update(now: Progress) -> None:
            line = shown.only(now.split, unit="images", tells_rate=True)
            line.count(now.rows_done, now.rows_total)

        yield update

"""Progress bars of extraction, training and sweeps, with the notes printed above them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING

from clinit.cli.frame.console import note, say, warn
from clinit.cli.frame.progress import Line, progress, reached
from clinit.observer import Doing, Event, Noted, Observer, Progressed, Warned
from clinit.words import number_of

if TYPE_CHECKING:
    from clinit.extract.work.split_run import Progress


@contextmanager
def training_progress() -> Iterator[Observer]:
    """Show all events of long work, each note only once."""
    from clinit.headtrain.protocol import events

    with progress() as line:
        line.work("Preparing")
        steps, total = 0, 0
        note_once = cache(note)

        def observe(event: Event) -> None:
            nonlocal steps, total
            match event:
                case Noted(text):
                    note_once(text)
                case Warned(text):
                    warn(text)
                case Doing(what):
                    line.work(what)
                case Progressed():
                    _show_count(line, event)
                case events.RunStarted(place):
                    say(f"{place.name}:")
                    line.work("Preparing")
                    steps = 0
                case events.BankStarted(bank, number, banks):
                    line.work("Preparing")
                    steps = 0
                    if banks > 1:
                        say(f"Seed {bank[0].stream.seed} ({number} of {banks}):")
                case events.TaskStarted(task, tasks, iterations):
                    line.update(f"Task {task}/{tasks}" if tasks > 1 else "Training")
                    line.unit, total = "steps", tasks * iterations
                    line.count(steps, total)
                case events.Stepped(done):
                    steps += done
                    line.count(steps, total)
                case events.Evaluated():
                    losses = event.loss_new.values()
                    told = [f"{loss:.3g}" for loss in sorted({min(losses), max(losses)})]
                    line.more = f"new-task loss {' to '.join(told)}"

        yield observe


def _show_count(line: Line, event: Progressed) -> None:
    if event.unit:
        line.work(event.what, unit=event.unit).count(event.done, event.total)
    elif event.total > 1:
        line.unit, line.more = event.what, ""
        line.count(event.done, event.total)
    else:  # a count of a single thing has no information
        line.unit, line.more = "", event.what
        line.count(event.done, None)


@contextmanager
def sweep_progress(total: int, done: int) -> Iterator[Observer]:
    """Show how many of `total` runs are recorded; the bar also moves with the steps of a bank."""
    from clinit.headtrain.protocol import events

    recorded, share = done, 0.0
    note_once = cache(note)
    with progress() as line:
        line.work(f"{done:,}/{total:,} runs")

        def observe(event: Event) -> None:
            nonlocal recorded, share
            match event:
                case Noted(text):
                    note_once(text)
                case events.BankStarted(runs):
                    share = len(runs) / max(1, runs[0].stream.tasks * runs[0].stream.iterations)
                    line.more = f"bank of {len(runs)}"
                    line.count(line.done, total - done)
                case events.Stepped(steps):
                    line.count(line.done + share * steps, total - done)
                case events.RunsRecorded(runs):
                    recorded += runs
                    line.update(f"{recorded:,}/{total:,} runs")
                    line.count(recorded - done, total - done)
                    reached(f"{recorded:,} of {number_of(total, 'run')} recorded")

        yield observe


@contextmanager
def extraction_progress() -> Iterator[Callable[[Progress], None]]:
    """Show a bar for the split or view that the extraction computes."""
    with progress() as line:

        def update(now: Progress) -> None:
            line.work(now.split, unit="images", tells_rate=True)
            line.count(now.rows_done, now.rows_total)

        yield update

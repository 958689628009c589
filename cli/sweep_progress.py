"""The progress of a sweep on the terminal: a bar over runs, and each note once."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from clinit.cli import progress as shown_progress
from clinit.cli.console import note
from clinit.words import number_of

if TYPE_CHECKING:
    from clinit.headtrain.sweep.runner import SweepEvent, SweepObserver


@contextmanager
def progress(*, total: int, done: int = 0) -> Iterator[SweepObserver]:
    """Show how many of `total` runs are recorded; within a bank the bar moves with its steps."""
    from clinit.headtrain import events
    from clinit.headtrain.sweep import runner

    said: set[str] = set()
    recorded, share = done, 0.0
    with shown_progress.progress() as shown:
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

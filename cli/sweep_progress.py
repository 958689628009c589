"""The progress of a sweep on the terminal: a bar over runs, and each note once."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from clinit.cli.console import err, note, say

if TYPE_CHECKING:
    from clinit.headtrain.sweep.runner import SweepEvent, SweepObserver


@contextmanager
def progress(*, total: int, done: int = 0) -> Iterator[SweepObserver]:
    """Show how many of `total` runs are recorded; within a bank the bar moves with its steps."""
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    from clinit.headtrain import events
    from clinit.headtrain.sweep import runner

    bar = Progress(
        TextColumn("{task.fields[recorded]}/{task.fields[runs]} runs"),
        BarColumn(bar_width=None),
        TextColumn("{task.percentage:>3.0f}%"),
        TimeRemainingColumn(compact=True),
        TextColumn("{task.fields[bank]}"),
        console=err,
        disable=not err.is_terminal,
    )
    said: set[str] = set()
    recorded, share = done, 0.0
    with bar:
        task = bar.add_task("", total=total - done, recorded=done, runs=total, bank="")

        def observe(event: SweepEvent) -> None:
            nonlocal recorded, share
            match event:
                case events.Noted(text):
                    if text not in said:
                        said.add(text)
                        note(text)
                case runner.BankStarted(runs, steps, again):
                    share = (runs - again) / max(1, steps)
                    bar.update(task, bank=f"bank of {runs}")
                case events.Stepped(steps):
                    bar.advance(task, share * steps)
                case runner.RunsRecorded(runs):
                    recorded += runs
                    bar.update(task, completed=recorded - done, recorded=recorded)
                    if not err.is_terminal:
                        say(f"{recorded:,} of {total:,} runs are recorded")
                case runner.BankHalved(runs):
                    note(f"a bank of {runs} runs does not fit into memory: it is halved")

        yield observe

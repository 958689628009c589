"""Show the progress of a command: bars at the foot of a terminal, or lines in a log.

A bar disappears when the work is done. A log gets a line from time to time. With --quiet, neither
is printed.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import cache
from itertools import chain, repeat
from threading import Event as Ending, Thread
from typing import TYPE_CHECKING

from rich.text import Text

from clinit.cli.frame.console import err, foot, is_quiet, say, tell
from clinit.observer import Doing, Event, Noted, Observer, Progressed, Warned
from clinit.words import duration, number_of, visible

if TYPE_CHECKING:
    from rich.console import RenderableType

PAUSES_S = (10.0, 20.0, 30.0)
"""Seconds before the first line of a log, and before each of the next two lines."""
LATER_S = 60.0
"""Seconds between all further lines."""
_LEAST_S = 1.0
"""Least seconds before a line, so that a rate can be estimated."""


class ProgressLine:
    """Progress of the present piece of work, with or without a count."""

    def __init__(self, begin: Callable[[], object] = lambda: None) -> None:
        """Start without work; `begin` is called before the first piece of work."""
        self._begin = begin
        self.title, self.unit, self.more = "", "", ""
        self.done: int | float = 0
        self.total: int | float | None = None
        """Expected final count; None if unknown."""
        self._began: tuple[float, int | float] | None = None
        """Monotonic time and count when counting began."""

    def work(self, title: str, *, unit: str = "") -> ProgressLine:
        """Begin a piece of work, unless the work with this title is under way.

        Args:
            title: Name of the work.
            unit: Name of the counted things, in the plural; if empty, only the share is shown.
        """
        if title != self.title:
            self._begin()
            self._begin = lambda: None
            self.title, self.unit, self.more = title, unit, ""
            self.done, self.total, self._began = 0, None, None
        return self

    def count(self, done: int | float, total: int | float | None) -> None:
        """Set the count to `done` of `total`; a smaller count than before begins a new count."""
        if self._began is None or done < self.done:
            self._began = (time.monotonic(), done)
        self.done, self.total = done, total

    def update(self, title: str) -> None:
        """Set the title of the current work."""
        self.title = title

    def in_words(self) -> str:
        """Return the text for a log."""
        told = ", ".join(filter(None, (*self._facts(" of "), self.more)))
        return ": ".join(filter(None, (self.title, told)))

    def __rich__(self) -> RenderableType:
        """Return the title, the bar, and the texts behind the bar."""
        from rich.progress_bar import ProgressBar
        from rich.table import Table

        bar = ProgressBar(total=self.total or None, completed=self.done, pulse=not self.total)
        counted, share, left, rate = self._facts("/")
        # If the line does not fit into the terminal, only the last cell is cut.
        more = _text(" ".join(filter(None, (rate, self.more))))
        more.no_wrap = True
        grid = Table.grid(padding=(0, 1), expand=True)
        grid.add_column(no_wrap=True, overflow="crop")
        grid.add_column(ratio=1, min_width=8)
        grid.add_column(no_wrap=True, overflow="crop")
        grid.add_column(no_wrap=True, overflow="crop")
        grid.add_column(overflow="crop")
        grid.add_row(_text(self.title), bar, _text(counted or share), _text(left), more)
        return grid

    def _facts(self, of: str) -> tuple[str, str, str, str]:
        """Return the count, its share, the time left and the rate; empty if unknown."""
        total, per_s = self.total or 0, 0.0
        if self._began is not None:
            spent, gained = time.monotonic() - self._began[0], self.done - self._began[1]
            per_s = gained / spent if gained > 0 and spent > 0 else 0.0
        counted = f"{int(self.done):,}{of}{int(total):,} {self.unit}" if total and self.unit else ""
        share = f"{100 * self.done / total:.0f} %" if total else ""
        # Assumes that the rest has the same rate.
        left = (
            f"{duration((total - self.done) / per_s)} left" if per_s and self.done < total else ""
        )
        rate = f"{per_s:,.{1 if per_s < 10 else 0}f} {self.unit}/s" if per_s else ""
        return counted, share, left, rate if self.unit == "images" else ""


class ProgressLog:
    """Prints lines of a log at its own times, which do not restart with each piece of work."""

    def __init__(self) -> None:
        self._pauses = chain(PAUSES_S, repeat(LATER_S))
        self._due: float | None = None
        """Monotonic time of the next line; None before the first piece of work."""

    @contextmanager
    def telling(self, told: Callable[[], str]) -> Iterator[None]:
        """Print the result of `told` whenever a line is due, unless it is empty.

        A thread prints, so lines appear even if the work is stuck, and then are equal.
        """
        if self._due is None:
            self._due = time.monotonic() + next(self._pauses)
        ended = Ending()
        thread = Thread(target=self._tell, args=(told, ended), name="progress", daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join(timeout=1)  # the thread hangs if the reader of the log has stopped

    def _tell(self, told: Callable[[], str], ended: Ending) -> None:
        while not ended.wait(max(_LEAST_S, (self._due or 0) - time.monotonic())):
            if line := told():
                self._due = time.monotonic() + next(self._pauses)
                _print_line(line)


_log = ProgressLog()


@contextmanager
def progress() -> Iterator[ProgressLine]:
    """Show progress as soon as the first work begins."""
    with ExitStack() as stack:
        line = ProgressLine(lambda: stack.enter_context(_shown(line, line.in_words)))
        yield line


@contextmanager
def counting(unit: str = "") -> Iterator[Callable[[str, int, int], None]]:
    """Show a count; yield a callback that takes its title, the count, and the total."""
    with progress() as line:
        yield lambda title, done, total: line.work(title, unit=unit).count(done, total)


@contextmanager
def doing(what: str) -> Iterator[ProgressLine]:
    """Show `what`, a few words with an ellipsis, and the time, while the context runs."""
    began, line = time.monotonic(), ProgressLine().work(what)
    with _shown(line, lambda: f"{line.title} {duration(time.monotonic() - began)}"):
        yield line


@contextmanager
def loading(what: str = "Loading the model …") -> Iterator[None]:
    """Do this without the collector: it takes a sixth of the imports, which leave no garbage."""
    gc.disable()
    try:
        with doing(what):
            yield
    finally:
        gc.freeze()
        gc.enable()


def reached(what: str) -> None:
    """Print a finished step into a log at once; a terminal shows it by its bar."""
    if not is_quiet() and not _is_drawn():
        _print_line(what)


@contextmanager
def _shown(part: RenderableType, told: Callable[[], str]) -> Iterator[None]:
    if is_quiet():
        yield
        return
    with foot.showing(part) if _is_drawn() else _log.telling(told):
        yield


def _is_drawn() -> bool:
    """Return whether standard error is a terminal that can draw, whatever FORCE_COLOR is."""
    return err.is_interactive and err.file.isatty()


def _print_line(line: str) -> None:
    err.print(Text(visible(line)), soft_wrap=True)


def _text(text: str) -> Text:
    """Return a text with escapes, so that rich measures its real width and can erase the line."""
    return Text(visible(text))


@contextmanager
def training_progress() -> Iterator[Observer]:
    """Show all events of long work, each note and warning only once."""
    from clinit.headtrain.protocol import events

    with progress() as line:
        line.work("Preparing")
        steps, total = 0, 0
        tell_once = cache(tell)

        def observe(event: Event) -> None:
            nonlocal steps, total
            match event:
                case Noted() | Warned():
                    tell_once(event)
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


def _show_count(line: ProgressLine, event: Progressed) -> None:
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
    tell_once = cache(tell)
    with progress() as line:
        line.work(f"{done:,}/{total:,} runs")

        def observe(event: Event) -> None:
            nonlocal recorded, share
            match event:
                case Noted() | Warned():
                    tell_once(event)
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

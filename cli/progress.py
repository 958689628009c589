"""How far a command is: bars at the foot of a terminal, lines of a log elsewhere.

A bar goes when the work is done, and the result takes its place. With --quiet there is neither.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

from rich.text import Text

from clinit.cli.console import err, foot, is_quiet
from clinit.cli.encoding import as_printed
from clinit.cli.progress_log import ProgressLog, print_line
from clinit.words import visible

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.spinner import Spinner

_log = ProgressLog()


class Line:
    """One thing that is counted."""

    def __init__(self, title: str, *, unit: str = "", tells_rate: bool = False) -> None:
        self.title = title
        self.unit = unit
        """What is counted, in the plural; empty where only the share is told."""
        self.tells_rate = tells_rate
        """Whether what is counted per second is told: of the same time as the seconds left."""
        self.more = ""
        """Anything else, such as a loss."""
        self.detail = ""
        """What a bar has room for, and a log has not."""
        self.done: int | float = 0
        self.total: int | float | None = None
        """None while nobody knows."""
        self._began: tuple[float, int | float] | None = None
        """Time of the monotonic clock, and what was done by then."""

    def count(self, done: int | float, total: int | float | None) -> None:
        """Say that `done` of `total` is done; less than before is another count."""
        if self._began is None or done < self.done:
            self._began = (time.monotonic(), done)
        self.done, self.total = done, total

    def in_words(self) -> str:
        """Return the line of a log."""
        counted = self._counted(" of ")
        share = "" if counted == self._share else self._share
        told = ", ".join(filter(None, (counted, share, self._left, self._rate, self.more)))
        return ": ".join(filter(None, (self.title, told)))

    def cells(self) -> tuple[RenderableType, ...]:
        """Return the title, the bar, and what is told behind it."""
        from rich.progress_bar import ProgressBar

        bar = ProgressBar(total=self.total or None, completed=self.done)
        # Of what does not fit into the terminal, the last cell alone is cut.
        more = _text(" ".join(filter(None, (self._rate, self.more, self.detail))))
        more.no_wrap = True
        return _text(self.title), bar, _text(self._counted("/")), _text(self._left), more

    def _counted(self, of: str) -> str:
        if not self.total or not self.unit:
            return self._share
        return f"{int(self.done):,}{of}{int(self.total):,} {self.unit}"

    @property
    def _share(self) -> str:
        return f"{100 * self.done / self.total:.0f} %" if self.total else ""

    @property
    def _left(self) -> str:
        """The time left, where it can be told: as if the rest took as long as what was done."""
        per_s = self._per_s
        if not (per_s and self.total) or self.done >= self.total:
            return ""
        return f"{duration((self.total - self.done) / per_s)} left"

    @property
    def _rate(self) -> str:
        per_s = self._per_s if self.tells_rate else 0.0
        return f"{per_s:,.{1 if per_s < 10 else 0}f} {self.unit}/s" if per_s else ""

    @property
    def _per_s(self) -> float:
        """What was counted per second since the first count; 0 where nothing was."""
        if self._began is None:
            return 0.0
        spent, gained = time.monotonic() - self._began[0], self.done - self._began[1]
        return gained / spent if gained > 0 and spent > 0 else 0.0


class Progress:
    """What is counted now, the latest last."""

    def __init__(self, begin: Callable[[], object]) -> None:
        """Count nothing yet; `begin` is called before the first line."""
        self._begin = begin
        self._lines: list[Line] | None = None

    def line(self, title: str, *, unit: str = "", tells_rate: bool = False) -> Line:
        """Begin to count something."""
        line = Line(title, unit=unit, tells_rate=tells_rate)
        if self._lines is None:
            self._lines = [line]
            self._begin()
        else:
            self._lines.append(line)
        return line

    def only(self, title: str, *, unit: str = "", tells_rate: bool = False) -> Line:
        """Return the line of that title; those of others go."""
        if self._lines and self._lines[-1].title == title:
            return self._lines[-1]
        if self._lines:
            self._lines.clear()
        return self.line(title, unit=unit, tells_rate=tells_rate)

    def reached(self, what: str) -> None:
        """Print at once what is done, in a log alone: a bar shows it."""
        if not is_quiet() and not _is_drawn():
            print_line(what)

    def in_words(self) -> str:
        """Return the line of a log: what is counted last."""
        return self._lines[-1].in_words() if self._lines else ""

    def __rich__(self) -> RenderableType:
        from rich.table import Table

        grid = Table.grid(padding=(0, 1), expand=True)
        grid.add_column(no_wrap=True, overflow="crop")
        grid.add_column(ratio=1, min_width=8)
        grid.add_column(no_wrap=True, overflow="crop")
        grid.add_column(no_wrap=True, overflow="crop")
        grid.add_column(overflow="crop")
        for line in list(self._lines or ()):
            grid.add_row(*line.cells())
        return grid


class Doing:
    """Something that goes on without a count."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._began = time.monotonic()
        self._spinner: Spinner | None = None

    def update(self, what: str) -> None:
        """Say what goes on now."""
        self._what = what

    def in_words(self) -> str:
        """Return the line of a log."""
        return f"{self._what} {duration(time.monotonic() - self._began)}"

    def __rich__(self) -> RenderableType:
        from rich.spinner import Spinner

        if self._spinner is None:
            self._spinner = Spinner("line" if err.options.ascii_only else "dots", style="green")
        self._spinner.update(text=_text(self._what))
        return self._spinner


def _text(text: str) -> Text:
    """Return a text to be drawn, as wide as it will be: a line too long could not be erased."""
    return Text(as_printed(visible(text), err.encoding))


@contextmanager
def progress() -> Iterator[Progress]:
    """Show how far something is, from its first line on."""
    with ExitStack() as stack:
        shown = Progress(lambda: stack.enter_context(_shown(shown, shown.in_words)))
        yield shown


@contextmanager
def counting(unit: str = "") -> Iterator[Callable[[str, int, int], None]]:
    """Show the latest of several counts; what it gives takes a title, what is done, and of what."""
    with progress() as shown:
        yield lambda title, done, total: shown.only(title, unit=unit).count(done, total)


@contextmanager
def doing(what: str) -> Iterator[Doing]:
    """Show that something goes on, in a few words that end with an ellipsis."""
    shown = Doing(what)
    with _shown(shown, shown.in_words):
        yield shown


@contextmanager
def _shown(part: RenderableType, told: Callable[[], str]) -> Iterator[None]:
    if is_quiet():
        yield
    elif _is_drawn():
        with foot.showing(part):
            yield
    else:
        with _log.telling(told):
            yield


def _is_drawn() -> bool:
    """Return whether standard error is a terminal that can draw; FORCE_COLOR makes none."""
    return err.is_interactive and err.file.isatty()


def duration(seconds: float) -> str:
    """Return a time in words, of two units at most.

    >>> duration(7.4), duration(330.0), duration(12e3), duration(2e5)
    ('7 s', '6 min', '3 h 20 min', '2 d 8 h')
    """
    if seconds < 100:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    if minutes < 100:
        return f"{minutes} min"
    if minutes < 48 * 60:
        return f"{minutes // 60} h {minutes % 60} min"
    hours = round(seconds / 3600)
    return f"{hours // 24} d {hours % 24} h"

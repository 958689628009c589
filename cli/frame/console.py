"""The two consoles of the command line, which print everything: `out` results, `err` the rest.

They escape control characters in data (`clinit.words`), print text and not markup, because a path
may contain [brackets], and do not wrap long paths. Characters that the encoding of an output lacks
are printed as `?`, because a result with a question mark is better than no result. Warnings and log
records of libraries may contain names of files and classes, so they are printed here too.
"""

from __future__ import annotations

import io
import logging
import os
import re
import sys
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from rich.console import Console as RichConsole, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.text import Text

from clinit.observer import Event, Noted, Warned
from clinit.words import OBEYED, visible

if TYPE_CHECKING:
    from rich.live import Live


class Foot:
    """Lines below all other output of the terminal, such as progress bars; erased at the end.

    Standard output and standard error usually share a terminal, but a rich console only tracks its
    own output. So the foot is erased before the other console prints (`aside`).
    """

    def __init__(self, console: RichConsole) -> None:
        self._console = console
        self._parts: list[RenderableType] = []
        self._live: Live | None = None

    @contextmanager
    def showing(self, part: RenderableType) -> Iterator[None]:
        """Draw `part` repeatedly, below earlier output, until the context ends."""
        self._erase()
        self._parts.append(part)
        self._draw()
        try:
            yield
        finally:
            self._erase()
            self._parts.remove(part)
            self._draw()

    @contextmanager
    def aside(self) -> Iterator[None]:
        """Erase the foot until the context ends, so that the other console can print."""
        if self._live is None:
            yield
            return
        self._erase()
        try:
            yield
        finally:
            self._draw()

    def _draw(self) -> None:
        if not self._parts:
            return
        from rich.console import Group
        from rich.live import Live

        # Always a new `Live`: a restarted `Live` first erases as many lines as it had drawn.
        self._live = Live(
            Group(*self._parts), console=self._console, transient=True, refresh_per_second=10
        )
        self._live.start(refresh=True)

    def _erase(self) -> None:
        live, self._live = self._live, None
        if live is not None:
            live.stop()


_JSON_UNSAFE = re.compile(f"(?![\\n\\t])[{OBEYED}]")
_NOT_ASCII = re.compile("[^\\n\\t -~]")


for _size in ("COLUMNS", "LINES"):  # rich prints nothing at 0, and fails for other texts
    if not re.fullmatch("[1-9][0-9]{0,3}", os.environ.get(_size, "80")):
        del os.environ[_size]


class Console(RichConsole):
    """A rich console that escapes control characters except its own, line breaks and tabs."""

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        """Render as rich does, with escapes; rich calls this for every part of an output."""
        if isinstance(renderable, Text):  # escape before rich wraps or cuts the text
            shown = visible(renderable.plain, lines=True)
            if shown != renderable.plain:
                renderable = renderable.blank_copy(shown)
        for segment in super().render(renderable, options):
            shown = segment.text if segment.control else visible(segment.text, lines=True)
            yield segment if shown == segment.text else Segment(shown, segment.style)


err = Console(stderr=True, highlight=False, markup=False, emoji=False)
foot = Foot(err)


class Results(Console):
    """The console for results, which are printed above the foot of the terminal."""

    def print(self, *objects: Any, **settings: Any) -> None:
        """Print as rich does."""
        with foot.aside():
            super().print(*objects, **settings)


out = Results(highlight=False, markup=False, emoji=False)
_quiet = False


def hush(*, wanted: bool) -> None:
    """Print no progress and no notes from now on, or print them again."""
    global _quiet
    _quiet = wanted
    if wanted:  # the Hugging Face Hub library draws its own progress bars
        os.environ["HF_HUB_DISABLE_PROGRESS_BARS"] = "1"


def is_quiet() -> bool:
    """Return whether --quiet leaves out progress and notes."""
    return _quiet


def note(message: str) -> None:
    """Print a line of information; nothing with --quiet."""
    if not _quiet:
        err.print(Text.assemble(("Note: ", "bold cyan"), visible(message)), soft_wrap=True)


def warn(message: str) -> None:
    """Print a line about something that the user probably did not intend."""
    err.print(Text.assemble(("Warning: ", "bold yellow"), visible(message)), soft_wrap=True)


def tell(event: Event) -> None:
    """Print an event that is a note or a warning."""
    match event:
        case Noted(text):
            note(text)
        case Warned(text):
            warn(text)


def say(message: str = "") -> None:
    """Print a line of a result."""
    out.print(Text(visible(message)), soft_wrap=True)


def print_json(text: str) -> None:
    r"""Print JSON for programs, with \u escapes instead of control characters.

    Control characters occur only in strings, where an escape means the same. If the encoding of
    the output is not UTF-8, every character outside ASCII is escaped.
    """
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    is_unicode = encoding.lower().startswith("utf")
    _write((_JSON_UNSAFE if is_unicode else _NOT_ASCII).sub(_json_escape, text) + "\n")


def print_csv(text: str) -> None:
    """Print CSV or Markdown; only on a terminal, escape control characters."""
    on_terminal = sys.stdout is not None and sys.stdout.isatty()
    _write(visible(text, lines=True) if on_terminal else text)


def _json_escape(found: re.Match[str]) -> str:
    units = found[0].encode("utf-16-be", "surrogatepass").hex()
    return "".join(f"\\u{units[i : i + 4]}" for i in range(0, len(units), 4))


def _write(text: str) -> None:
    if sys.stdout is None:  # closed by the parent process
        return
    with foot.aside():  # must come first, because rich replaces sys.stdout while it draws
        sys.stdout.write(text)
        sys.stdout.flush()


class _Unfailing(io.FileIO):
    """Loses what cannot be written, because a full log must not cost a run."""

    def write(self, content: Any, /) -> int:
        """Write as a file does; on an error, claim that all is written."""
        try:
            return super().write(content)
        except OSError:
            return len(content)


def ignore_full_log() -> None:
    """Ignore all errors of writing to standard error."""
    if (given := sys.__stderr__) is not None and sys.stderr is given:  # not closed, not of a test
        log = io.BufferedWriter(_Unfailing(given.fileno(), "w", closefd=False))
        sys.stderr = io.TextIOWrapper(log, given.encoding, line_buffering=True)


def replace_what_cannot_be_printed() -> None:
    """Make standard output and error print `?` for characters that their encoding lacks."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # tests and notebooks use other streams
            stream.reconfigure(errors="replace")


class _ConsoleHandler(logging.Handler):
    """Prints log records of libraries without a handler."""

    def emit(self, record: logging.LogRecord) -> None:
        err.print(Text(visible(self.format(record))), soft_wrap=True)


def show_messages_of_libraries() -> None:
    """Print warnings and log records of libraries in one line, like warnings of clinit."""
    warnings.showwarning = _show
    logging.lastResort = _ConsoleHandler(logging.WARNING)


def _show(message: Warning | str, category: type[Warning], *where: object, **more: object) -> None:
    warn(f"{message} ({category.__name__})")

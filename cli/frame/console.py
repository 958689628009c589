"""The two consoles of the command line, through which everything is printed.

They print control characters of the data as escapes (`clinit.words`), and text instead of markup: a
path may contain [brackets]. Long paths are not wrapped. Characters that the encoding of an output
lacks are printed as `?`: a result with a question mark in it is better than none.
Warnings and log records of libraries are printed here too, because they name files and classes.
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

from rich.console import Console as RichConsole
from rich.console import ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.text import Text

from clinit.words import OBEYED, visible

if TYPE_CHECKING:
    from rich.live import Live


class Foot:
    """Lines at the foot of the terminal of a console, erased in the end.

    Standard output and standard error usually share a terminal, but a console of rich knows only
    its own output. Before anything else is printed, the foot is erased: see `aside`.
    """

    def __init__(self, console: RichConsole) -> None:
        self._console = console
        self._parts: list[RenderableType] = []
        self._live: Live | None = None

    @contextmanager
    def showing(self, part: RenderableType) -> Iterator[None]:
        """Draw `part` again and again, below earlier output, until the context ends."""
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
        """Erase the foot until the context ends, so that others can print."""
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

        # A new one each time: a restarted one would first erase as many lines as it had before.
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


for _size in ("COLUMNS", "LINES"):  # rich prints nothing at 0, and fails if a size is no number
    if not re.fullmatch("[1-9][0-9]{0,3}", os.environ.get(_size, "80")):
        del os.environ[_size]


class Console(RichConsole):
    """A console of rich that prints no control characters but its own, line breaks and tabs."""

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        """Render as rich does; every part of every output comes through here."""
        if isinstance(renderable, Text):  # before it is wrapped and cut
            shown = visible(renderable.plain, lines=True)
            if shown != renderable.plain:
                renderable = renderable.blank_copy(shown)
        for segment in super().render(renderable, options):
            shown = segment.text if segment.control else visible(segment.text, lines=True)
            yield segment if shown == segment.text else Segment(shown, segment.style)


err = Console(stderr=True, highlight=False, markup=False, emoji=False)
foot = Foot(err)


class Results(Console):
    """The console of results: they are printed above the foot of the terminal."""

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
    if wanted:  # the library of the Hub draws progress bars of its own
        os.environ["HF_HUB_DISABLE_PROGRESS_BARS"] = "1"


def is_quiet() -> bool:
    """Return whether progress and notes are left out."""
    return _quiet


def note(message: str) -> None:
    """Print one line that the user may want to know; nothing with --quiet."""
    if not _quiet:
        err.print(Text.assemble(("Note: ", "bold cyan"), visible(message)), soft_wrap=True)


def warn(message: str) -> None:
    """Print one line on something that the user probably did not want."""
    err.print(Text.assemble(("Warning: ", "bold yellow"), visible(message)), soft_wrap=True)


def say(message: str = "") -> None:
    """Print a line as it is."""
    out.print(Text(visible(message)), soft_wrap=True)


def print_json(text: str) -> None:
    r"""Print JSON for programs, with \u escapes in place of control characters.

    Control characters occur only in strings, in which an escape means the same. If the output is
    not UTF-8, every character outside ASCII is escaped.
    """
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    is_unicode = encoding.lower().startswith("utf")
    escaped = (_JSON_UNSAFE if is_unicode else _NOT_ASCII).sub(_json_escape, text)
    _write(escaped + "\n")


def print_csv(text: str) -> None:
    """Print CSV or Markdown: as it is into a file or pipe, escaped on a terminal."""
    on_terminal = sys.stdout is not None and sys.stdout.isatty()
    _write(visible(text, lines=True) if on_terminal else text)


def _json_escape(found: re.Match[str]) -> str:
    units = found[0].encode("utf-16-be", "surrogatepass").hex()
    return "".join(f"\\u{units[i : i + 4]}" for i in range(0, len(units), 4))


def _write(text: str) -> None:
    if sys.stdout is None:  # closed by the parent process
        return
    with foot.aside():  # it puts another stream in the place of this one
        sys.stdout.write(text)
        sys.stdout.flush()


def replace_what_cannot_be_printed() -> None:
    """Make the standard outputs print `?` for the characters that they lack."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # not what a test or a notebook puts there
            stream.reconfigure(errors="replace")


class _ConsoleHandler(logging.Handler):
    """Prints log records for which a library has no handler."""

    def emit(self, record: logging.LogRecord) -> None:
        err.print(Text(visible(self.format(record))), soft_wrap=True)


def show_messages_of_libraries() -> None:
    """Print them like our own: in one line, without the line of code that caused a warning."""
    warnings.showwarning = _show
    logging.lastResort = _ConsoleHandler(logging.WARNING)


def _show(message: Warning | str, category: type[Warning], *where: object, **more: object) -> None:
    warn(f"{message} ({category.__name__})")

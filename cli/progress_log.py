"""Progress where no terminal draws it: a line on standard error now and then."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import chain, repeat
from threading import Event, Thread

from rich.text import Text

from clinit.cli.console import err
from clinit.words import visible

PAUSES_S = (10.0, 20.0, 30.0)
"""Seconds before the first line and between the next ones: what is done by then is not told of."""
LATER_S = 60.0
"""Seconds between all further lines."""
_LEAST_S = 1.0
"""Seconds after which anything can be said of work that has just begun."""


class ProgressLog:
    """When the next line is due, whatever the process does then: many short works are one long."""

    def __init__(self) -> None:
        self._pauses = chain(PAUSES_S, repeat(LATER_S))
        self._due: float | None = None
        """Time of the monotonic clock; None while nothing has begun."""

    @contextmanager
    def telling(self, told: Callable[[], str]) -> Iterator[None]:
        """Print what `told` returns whenever a line is due, unless it is empty.

        From a thread: a line that says the same twice tells that the work does not go on.
        """
        if self._due is None:
            self._due = time.monotonic() + next(self._pauses)
        ended = Event()
        thread = Thread(target=self._tell, args=(told, ended), name="progress", daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join(timeout=1)  # no longer: whoever reads the log may have stopped

    def _tell(self, told: Callable[[], str], ended: Event) -> None:
        while not ended.wait(max(_LEAST_S, (self._due or 0) - time.monotonic())):
            if line := told():
                self._due = time.monotonic() + next(self._pauses)
                print_line(line)


def print_line(line: str) -> None:
    """Print a line of the log."""
    err.print(Text(visible(line)), soft_wrap=True)

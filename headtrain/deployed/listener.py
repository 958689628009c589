"""Who hears of work on a model in use while it is done: a terminal, a log, or nobody."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

from clinit.extract.progress import Progress
from clinit.headtrain.events import Observer, ignore


def _nothing(told: object) -> None:
    pass


@dataclass(frozen=True, slots=True, kw_only=True)
class Listener:
    """What is called; by default nothing is told to anybody."""

    note: Callable[[str], None] = _nothing
    """Given what the user may want to know."""
    warn: Callable[[str], None] = _nothing
    """Given what is probably not what the user wanted."""
    doing: Callable[[str], AbstractContextManager[object]] = nullcontext
    """Entered with a few words while something goes on that has no progress to show."""
    extracting: Callable[[], AbstractContextManager[Callable[[Progress], None]]] = lambda: (
        nullcontext(_nothing)
    )
    """Entered while features are computed: what it gives is called after every batch."""
    training: Callable[[], AbstractContextManager[Observer]] = lambda: nullcontext(ignore)
    """Entered while rows are computed and trained: what it gives is called with each event."""


SILENT = Listener()

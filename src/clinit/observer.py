"""Events of long work for its caller: notes, warnings, the present step, progress.

    def observe(event: Event) -> None:
        match event:
            case Noted(note): print(note)

All parts of clinit report by these events, and by events of their own derived from `Event`.
Only the caller decides what to show: the command line, a notebook, or nobody (`ignore`).
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Event:
    """Something that the caller of long work may show."""


@dataclass(frozen=True, slots=True)
class Noted(Event):
    """A note for the user about the data, the settings or the work."""

    note: str


@dataclass(frozen=True, slots=True)
class Warned(Event):
    """Something that the user probably did not intend."""

    warning: str


@dataclass(frozen=True, slots=True)
class Doing(Event):
    """Work begins whose end cannot be foreseen."""

    what: str


@dataclass(frozen=True, slots=True)
class Progressed(Event):
    """`done` of `total` units of a piece of work are finished."""

    what: str
    done: int
    total: int
    unit: str = ""
    """Name of the units, in the plural; empty if they mean nothing to the user."""


Observer = Callable[[Event], None]


def ignore(event: Event) -> None:
    """Ignore the event."""


def warn(event: Event) -> None:
    """Make warnings of Python of warnings."""
    if isinstance(event, Warned):
        warnings.warn(event.warning, stacklevel=2)

"""The foot of the terminal: lines that change while a command works. Results appear above them.

Standard output and standard error are usually one terminal, but a console of rich knows only of
what it has drawn itself. Whoever prints elsewhere takes the foot away first, see `Foot.aside`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.live import Live


class Foot:
    """What is drawn at the foot of the terminal of a console; nothing of it stays there."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._parts: list[RenderableType] = []
        self._live: Live | None = None

    @contextmanager
    def showing(self, part: RenderableType) -> Iterator[None]:
        """Draw `part` again and again, below what is drawn already, until the context ends."""
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
        """Leave the terminal to somebody else until the context ends."""
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

        # A new one each time: one that was stopped would erase as many lines as it once had.
        self._live = Live(
            Group(*self._parts), console=self._console, transient=True, refresh_per_second=10
        )
        self._live.start(refresh=True)

    def _erase(self) -> None:
        live, self._live = self._live, None
        if live is not None:
            live.stop()

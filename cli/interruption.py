"""Ctrl-C, SIGTERM and SIGHUP: the command ends as at an error, and says what is kept.

The signal becomes an exception, so that context managers remove drafts and give locks back.
Another signal meanwhile ends the process at once.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

_WORDS = {
    signal.SIGINT: "Interrupted",
    signal.SIGTERM: "Terminated",
    **({signal.SIGHUP: "Hung up"} if hasattr(signal, "SIGHUP") else {}),
}


class Interruption(BaseException):
    """A signal ends the command. Not KeyboardInterrupt, which typer turns into a silent exit."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number
        self.kept = ""
        """What the command says about it."""

    def __str__(self) -> str:
        return f"{_WORDS[signal.Signals(self.number)]}. {self.kept}".rstrip()

    @property
    def exit_code(self) -> int:
        """128 and the number of the signal, as shells have it."""
        return 128 + self.number


@contextmanager
def keeps(what: str) -> Iterator[None]:
    """Let an interruption within say `what` is kept; also a decorator of commands.

    Where one is within another, the outer one speaks: it knows what becomes of the whole.
    """
    try:
        yield
    except Interruption as interruption:
        interruption.kept = what
        raise


_arrived: Interruption | None = None


def arrived() -> Interruption | None:
    """Return the interruption that has begun, whatever error came of the clean-up since."""
    return _arrived


def heed_signals() -> None:
    """Turn signals into `Interruption`; one that the parent ignores or handles stays so."""
    global _arrived
    _arrived = None
    for number in _WORDS:
        if signal.getsignal(number) in (signal.SIG_DFL, signal.default_int_handler):
            signal.signal(number, _interrupt)


def _interrupt(number: int, frame: FrameType | None) -> None:
    global _arrived
    for each in _WORDS:
        if signal.getsignal(each) is _interrupt:
            signal.signal(each, signal.SIG_DFL)
    _arrived = Interruption(number)
    raise _arrived

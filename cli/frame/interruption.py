"""Ctrl-C, SIGTERM and SIGHUP: end the command as at an error, and report the work that is kept.

The signal becomes an exception, so that context managers remove drafts and release locks. One stop
may send two signals: `timeout` signals the process and its group, and a closing terminal signals
its shell and its jobs. So further signals are ignored for a second; later signals end the process
at once.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

_WORDS = {
    signal.SIGINT: "Interrupted",
    signal.SIGTERM: "Terminated",
    **({signal.SIGHUP: "Hung up"} if hasattr(signal, "SIGHUP") else {}),
}
NOTHING = "Nothing is kept yet: run the same command again."
_GRACE_S = 1.0
"""Seconds after the first signal in which further signals are ignored."""


class Interruption(BaseException):
    """A signal that ends the command. typer would turn KeyboardInterrupt into a silent exit."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number
        self.kept = ""
        """The command's sentence about the work that is kept, see `keeps`."""
        self.is_empty = False
        """Whether the command that is interrupted has nothing to keep yet."""

    def __str__(self) -> str:
        return f"{_WORDS[signal.Signals(self.number)]}. {self.kept}".rstrip()

    @property
    def exit_code(self) -> int:
        """128 plus the number of the signal, as in shells."""
        return 128 + self.number


@contextmanager
def keeps(what: str) -> Iterator[None]:
    """Let an interruption within the context report that `what` is kept; also a decorator.

    Of nested contexts, the outermost is reported, because it describes the whole command.
    """
    try:
        yield
    except Interruption as interruption:
        interruption.kept = NOTHING if interruption.is_empty else what
        interruption.is_empty = False
        raise


_arrived: Interruption | None = None
_ending_since: float | None = None
"""Monotonic time of `raise_no_more`; None while a signal still raises an exception."""


def arrived() -> Interruption | None:
    """Return the interruption, even if the clean-up has raised another error since."""
    return _arrived


def heed_signals() -> None:
    """Turn signals into `Interruption`, except those that already have a handler or are ignored."""
    global _arrived, _ending_since
    _arrived = _ending_since = None
    for number in _WORDS:
        if signal.getsignal(number) in (signal.SIG_DFL, signal.default_int_handler):
            signal.signal(number, _interrupt)


def raise_no_more() -> None:
    """Stop raising exceptions: ignore signals for a second; later signals end the process."""
    global _ending_since
    if _ending_since is None:
        _ending_since = time.monotonic()


def _interrupt(number: int, frame: FrameType | None) -> None:
    global _arrived
    if _ending_since is None:
        raise_no_more()
        _arrived = Interruption(number)
        raise _arrived
    if time.monotonic() - _ending_since >= _GRACE_S:
        signal.signal(number, signal.SIG_DFL)
        signal.raise_signal(number)

"""The parts of a study, and what its method makes of them."""

from __future__ import annotations

from dataclasses import dataclass, field

from clinit.headtrain.study.closed import Closed
from clinit.headtrain.study.start import Start
from clinit.headtrain.study.stream import Stream
from clinit.headtrain.study.top import Top
from clinit.headtrain.study.training import Training
from clinit.headtrain.study.words import CLOSED_METHODS, SOLVED_METHODS


@dataclass(frozen=True, kw_only=True, slots=True)
class Parts:
    """The settings of one run, by part."""

    stream: Stream = field(default_factory=Stream)
    start: Start = field(default_factory=Start)
    training: Training = field(default_factory=Training)
    closed: Closed = field(default_factory=Closed)
    top: Top | None = None

    @property
    def is_solved(self) -> bool:
        """Whether heads are solved instead of trained."""
        return self.stream.method in SOLVED_METHODS or self.is_closed

    @property
    def is_closed(self) -> bool:
        """Whether heads are closed forms of statistics that rows are added to as they arrive."""
        return self.stream.method in CLOSED_METHODS

    @property
    def rehearses(self) -> bool:
        """Whether batches hold rows of a buffer."""
        return self.stream.method in ("rehearsal", "derpp")

    @property
    def keeps_buffer(self) -> bool:
        """Whether old rows are kept in a buffer: for rehearsal, or for initialisation alone."""
        method = self.stream.method
        rows = self.start.init_rows or default_init_rows(method)
        return self.rehearses or (method in ("naive", "ewc") and rows == "buffer")


def default_init_rows(method: str) -> str:
    """Return the default of `init_rows`: what initialisation sees beside new rows."""
    return "new" if method == "naive" else "buffer"

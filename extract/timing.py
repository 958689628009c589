"""Where the time of an extraction goes, and what bounds it."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, fields


@dataclass(slots=True)
class Timing:
    """Seconds of the main thread, by what it did or waited for.

    Reading and decoding happen in other threads; the main thread's waiting for them is split
    between the two in proportion to the work of those threads.
    """

    read: float = 0.0
    decode: float = 0.0
    transfer: float = 0.0
    forward: float = 0.0
    write: float = 0.0

    def add_wait(self, waited_s: float, *, read_s: float, decode_s: float) -> None:
        """Add the seconds that a batch was waited for."""
        share = read_s / (read_s + decode_s) if read_s + decode_s > 0 else 0.0
        self.read += waited_s * share
        self.decode += waited_s * (1 - share)

    @contextmanager
    def measure(self, phase: str) -> Iterator[None]:
        """Add the seconds of the body to `phase`."""
        clock = time.perf_counter()
        yield
        setattr(self, phase, getattr(self, phase) + time.perf_counter() - clock)

    @property
    def total(self) -> float:
        """Sum of all phases in seconds."""
        return sum(self.seconds().values())

    def seconds(self) -> dict[str, float]:
        """Return the seconds of each phase."""
        return {field.name: float(getattr(self, field.name)) for field in fields(self)}

    def shares(self) -> Mapping[str, float]:
        """Return each phase's share of the total, in [0, 1]."""
        total = self.total
        return {name: s / total if total else 0.0 for name, s in self.seconds().items()}

    @property
    def bound(self) -> str:
        """The phase with the largest share."""
        seconds = self.seconds()
        return max(seconds, key=lambda name: seconds[name])

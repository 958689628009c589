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
    between the two in proportion to the work of those threads. A CUDA device copies and computes
    on its own; waiting for it is split between transfer and forward in proportion to its seconds
    for each. What is hidden behind something slower is waited for by nobody and counts little:
    the largest share bounds the rate.
    """

    read: float = 0.0
    decode: float = 0.0
    transfer: float = 0.0
    forward: float = 0.0
    write: float = 0.0

    def add_wait(self, waited_s: float, **work: float) -> None:
        """Split the seconds that a batch was waited for in proportion to the work behind it.

        Args:
            waited_s: Of the main thread.
            work: By phase, in any unit; where there was none, the last phase gets the seconds.
        """
        total = sum(work.values())
        shares = [each / total if total > 0 else 0.0 for each in work.values()]
        shares[-1] = 1 - sum(shares[:-1])
        for phase, share in zip(work, shares, strict=True):
            setattr(self, phase, getattr(self, phase) + waited_s * share)

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

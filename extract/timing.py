"""Where the time of an extraction goes, and what bounds it."""

from __future__ import annotations

from clinit.stopwatch import Stopwatch

PHASES = ("read", "decode", "transfer", "forward", "write")


class Timing(Stopwatch):
    """Seconds of the main thread, by what it did or waited for: one of `PHASES`.

    Reading and decoding happen in other threads; the main thread's waiting for them is split
    between the two in proportion to the work of those threads. A CUDA device copies and computes
    on its own; waiting for it is split between transfer and forward in proportion to its seconds
    for each. What is hidden behind something slower is waited for by nobody and counts little:
    the largest share bounds the rate.
    """

    def __init__(self) -> None:
        super().__init__()  # without a device: waiting for it would undo the overlap
        self.seconds.update(dict.fromkeys(PHASES, 0.0))

    def add_wait(self, waited_s: float, **work: float) -> None:
        """Split the seconds that a batch was waited for in proportion to the work behind it.

        Args:
            waited_s: Seconds of the main thread.
            work: Work by phase, in any unit; where there was none, the last phase gets the seconds.
        """
        total = sum(work.values())
        shares = [each / total if total > 0 else 0.0 for each in work.values()]
        shares[-1] = 1 - sum(shares[:-1])
        for phase, share in zip(work, shares, strict=True):
            self.seconds[phase] += waited_s * share

    @property
    def busy(self) -> float:
        """Sum of all phases in seconds."""
        return sum(self.seconds.values())

    def shares(self) -> dict[str, float]:
        """Return each phase's share of the sum of all phases, in [0, 1]."""
        busy = self.busy
        return {name: seconds / busy if busy else 0.0 for name, seconds in self.seconds.items()}

    @property
    def bound(self) -> str:
        """The phase with the largest share."""
        return max(self.seconds, key=lambda name: self.seconds[name])

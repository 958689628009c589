"""Where the time of an extraction goes, what bounds it, and how far it is."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from clinit.extract.work.part import Part
from clinit.stopwatch import Stopwatch

if TYPE_CHECKING:
    from clinit.extract.work.shard_work import ShardWork

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


@dataclass(frozen=True, slots=True)
class Progress:
    """How far the extraction of a split is."""

    split: str
    rows_done: int
    """Rows in finished batches, those found in earlier shards included."""
    rows_total: int
    images_per_s: float
    """Rate of this run."""
    shares: Mapping[str, float]
    """Share of each phase in the time, in [0, 1]."""
    waiting: str = ""
    """Whom this worker waits for, where it does."""


class Meter:
    """What the progress bar of a split shows."""

    def __init__(
        self, work: ShardWork, part: Part, on_progress: Callable[[Progress], None]
    ) -> None:
        self._work, self._tell = work, on_progress
        shards = part.shards(work.plan.num_shards)
        self._total = sum(len(work.plan.rows(shard)) for shard in shards)
        self._watch = Stopwatch()
        self._done = 0
        self.computed = 0
        """Rows computed here."""
        self.shared = 0
        """Rows that others have computed meanwhile."""

    def begin(self, missing: Sequence[int]) -> None:
        """Begin: all shards but the missing ones are there."""
        self._done = self._total - sum(len(self._work.plan.rows(shard)) for shard in missing)
        self._watch = Stopwatch()

    @property
    def elapsed_s(self) -> float:
        """Seconds since the beginning."""
        return self._watch.total

    def advance(self, rows: int) -> None:
        """Add rows that were computed here."""
        self._done += rows
        self.computed += rows
        self._show("")

    def found(self, shard: int) -> None:
        """Add a shard that another worker has computed."""
        rows = len(self._work.plan.rows(shard))
        self._done += rows
        self.shared += rows

    def wait(self, who: str) -> None:
        """Say who is waited for."""
        self._show(f"waiting for {who}")

    def _show(self, waiting: str) -> None:
        rate = self.computed / self._watch.total
        timing = self._work.timing
        self._tell(
            Progress(self._work.plan.title, self._done, self._total, rate, timing.shares(), waiting)
        )

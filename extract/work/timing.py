"""Where the time of an extraction goes, what bounds it, and how far it is."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from clinit.stopwatch import Stopwatch

if TYPE_CHECKING:
    from clinit.extract.cache.plan import Part
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


class Meter:
    """What the progress bar of a split shows."""

    def __init__(
        self,
        work: ShardWork,
        part: Part,
        missing: Iterable[int],
        on_progress: Callable[[Progress], None],
    ) -> None:
        """Begin: all shards of the part but the missing ones are there."""
        self._work, self._tell, self._watch = work, on_progress, Stopwatch()
        plan = work.plan
        self._total = sum(len(plan.rows(shard)) for shard in part.shards(plan.num_shards))
        self._found = self._total - sum(len(plan.rows(shard)) for shard in missing)
        self.computed = 0
        """Rows computed here."""

    def advance(self, rows: int) -> None:
        """Add rows that were computed."""
        self.computed += rows
        rate, done = self.computed / self._watch.total, self._found + self.computed
        shares = self._work.timing.shares()
        self._tell(Progress(self._work.plan.title, done, self._total, rate, shares))

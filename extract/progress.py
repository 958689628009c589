"""How far an extraction is, for a progress bar."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from clinit.extract.part import Part
from clinit.extract.shard_work import ShardWork
from clinit.stopwatch import Stopwatch


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

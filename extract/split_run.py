"""Extract one split: find the shards that are missing, have them computed, write the summary."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from importlib.metadata import version
from itertools import chain
from pathlib import Path
from typing import Protocol, runtime_checkable

from clinit.errors import CacheError, ManifestError
from clinit.extract.cache import (
    HEAD_FILE,
    CacheSplit,
    open_split,
    shard_problem,
    verify_shard,
)
from clinit.extract.claims import Claims
from clinit.extract.dataset.manifest import read_manifest, write_manifest
from clinit.extract.head import Head, Top1, store_head, tensors_sha256
from clinit.extract.head_names import NAMED_EARLIER, HeadNames
from clinit.extract.part import WHOLE, Part
from clinit.extract.plan import FILE as PLAN_FILE
from clinit.extract.plan import Plan, settle_plan, shard_name
from clinit.extract.progress import Meter, Progress
from clinit.extract.shard import read_shard
from clinit.extract.shard_work import ShardWork
from clinit.extract.summary import FILE as SUMMARY_FILE
from clinit.extract.summary import UNKNOWN, RunFacts, names_sha256, write_summary
from clinit.files.commit import flush_folder

MANIFEST_FILE = "manifest.parquet"
_State = tuple[int, int, int] | None
"""What changes when a file is written anew; None where there is none."""


@dataclass(frozen=True, slots=True)
class SplitResult:
    """What came of one split."""

    split: CacheSplit
    computed_rows: int
    """Rows extracted in this run; 0 where the split was complete."""
    replaced_shards: tuple[str, ...]
    """Why a shard that was there has been computed again."""
    retried_rows: int | None = None
    """Invalid rows whose images were read again; None where that was not asked for."""
    part: Part = field(default_factory=Part)
    """The part whose shards were looked at."""
    shared_rows: int = 0
    """Rows that other workers have extracted while this run was under way."""
    run: RunFacts | None = None
    """How this run has computed its rows; None where it computed none."""

    @property
    def top1(self) -> Top1:
        """Accuracy of the stored head, on the rows whose class it knows."""
        return self.split.summary.head.top1


@dataclass(frozen=True, slots=True)
class PartResult:
    """What came of a part of one split, where other parts are not there yet."""

    plan: Plan
    path: Path
    part: Part
    computed_rows: int
    """Rows extracted in this run."""
    shards_there: int
    """Shards of all parts that are there."""
    replaced_shards: tuple[str, ...]
    """Why a shard that was there has been computed again."""
    problem: str = ""
    """What is wrong with a shard of another part, where all are there."""


@runtime_checkable
class Crew(Protocol):
    """Who computes shards: this process (`ShardWork`) or others."""

    def compute(
        self,
        shards: Iterable[int],
        *,
        on_rows: Callable[[int], None],
        before_write: Callable[[int], None],
    ) -> Iterator[int]:
        """Compute shards, in any order; see `ShardWork.compute`."""
        ...


@dataclass(slots=True, eq=False, kw_only=True)
class SplitRun:
    """The extraction of one split: find the shards that are missing, have them computed."""

    work: ShardWork
    part: Part = field(default_factory=Part)
    """The shards that this worker may compute."""
    head: Head | None
    """The pretrained head, stored beside the split (not a view) and judged on it."""
    head_names: HeadNames
    """Its class names, and where they came from."""
    names_given: bool
    """Whether this command names the head's rows."""
    retry_invalid: bool = False
    """Whether shards with invalid rows are computed again."""
    command: str | None = None
    """The command line, for the summary."""
    crew: Crew | None = None
    """Who computes; None for this process."""
    on_progress: Callable[[Progress], None]

    def run(self) -> SplitResult | PartResult:
        """Extract what is missing of this part; complete the split if all parts are there.

        Several processes may do so at once: they share the shards by claims, and each returns
        when all shards of its part are there.

        Raises:
            ClinitError: If the folder belongs to another extraction or the storage fails.
        """
        meter = Meter(self.work, self.part, self.on_progress)
        with Claims(self.folder, on_wait=meter.wait) as claims:
            self._begin(claims)
            # Looked at before their content is, so that what another worker writes is seen.
            before, states = _state(self.folder / SUMMARY_FILE), self._states()
            finished = self._finished()
            missing, replaced = self._missing_shards(finished)
            retried = self._invalid_rows(missing) if self.retry_invalid else {}
            retried_rows = sum(retried.values()) if self.retry_invalid else None
            todo = sorted({*missing, *retried})
            if finished is not None and not todo and not self._absent():
                judged = self._judged_again(finished, claims)
                return SplitResult(judged, 0, (), retried_rows, self.part)
            meter.begin(todo)
            started, is_mended = datetime.now(UTC), False
            while True:
                left = {shard: states[shard] for shard in todo}
                self._work_through(left, retried.keys(), claims, meter)
                facts = self._facts(meter.computed, started, meter.elapsed_s)
                there = self.plan.num_shards - self._absent()
                part = PartResult(
                    self.plan, self.folder, self.part, meter.computed, there, tuple(replaced)
                )
                if there < self.plan.num_shards:
                    return part
                try:
                    self._complete(claims, facts, before=before, has_changed=bool(retried))
                    break
                except CacheError as error:  # another worker's shard is damaged
                    states = self._states()
                    todo, _ = self._missing_shards(None)
                    if not todo and self.part != WHOLE:
                        return replace(part, problem=str(error))
                    if is_mended or not todo:
                        raise
                    is_mended = True
        return SplitResult(
            open_split(self.folder),
            meter.computed,
            tuple(replaced),
            retried_rows,
            self.part,
            meter.shared,
            facts if meter.computed else None,
        )

    def _complete(
        self, claims: Claims, facts: RunFacts, *, before: _State, has_changed: bool
    ) -> None:
        """Write the summary, unless another worker has found before that all shards are there.

        Args:
            claims: Claims of this worker.
            facts: How the features came about.
            before: State of the summary when this worker began.
            has_changed: Whether it has computed shards in place of whole ones, which have other
                digests than another worker may have seen.

        Raises:
            CacheError: If a shard is damaged.
        """
        with claims.holding(SUMMARY_FILE):
            is_told = _state(self.folder / SUMMARY_FILE) != before and not has_changed
            if not is_told or self._finished() is None:
                self._summarise(self.head_names.source, facts)
        claims.sweep()

    def _states(self) -> dict[int, _State]:
        return {shard: _state(self.folder / shard_name(shard)) for shard in self._shards}

    def _absent(self) -> int:
        """Return how many shards, of all parts, are not there."""
        shards = range(self.plan.num_shards)
        return sum(not (self.folder / shard_name(shard)).exists() for shard in shards)

    @property
    def plan(self) -> Plan:
        """Which rows go to which shard."""
        return self.work.plan

    @property
    def folder(self) -> Path:
        """The folder of the split."""
        return self.work.folder

    def _begin(self, claims: Claims) -> None:
        """Write what stands beside the shards, where it is not there."""
        if not (self.folder / PLAN_FILE).exists():
            with claims.holding(PLAN_FILE):
                settle_plan(self.plan, self.folder)
        settle_plan(self.plan, self.folder)
        if self.head is not None and self.work.view is None:
            stored = store_head(self.head, self.folder.parent / HEAD_FILE)
            if stored.class_names != self.head.class_names:
                self.head = stored
                self.head_names = HeadNames(stored.class_names, NAMED_EARLIER)
        if not self._has_manifest():
            with claims.holding(MANIFEST_FILE):
                write_manifest(self.work.manifest, self.folder / MANIFEST_FILE)

    def _has_manifest(self) -> bool:
        try:
            return read_manifest(self.folder / MANIFEST_FILE).digest == self.work.manifest.digest
        except ManifestError:
            return False

    def _work_through(
        self,
        left: dict[int, _State],
        retried: Collection[int],
        claims: Claims,
        meter: Meter,
    ) -> None:
        """Compute shards until all of them are there, by this worker or by others.

        Args:
            left: Which ones, each with its state at the beginning; empty at the end.
            retried: Those of them that are whole, and get other content.
            claims: Claims of this worker.
            meter: Told of what is done.
        """

        def before_write(shard: int) -> None:
            if shard in retried:
                self._withdraw_summary()

        crew: Crew = self.crew or self.work
        while left:
            shards = self._claimed(left, claims, meter)
            if (first := next(shards, None)) is None:
                if left:
                    claims.wait([shard_name(shard) for shard in left])
                continue
            for shard in crew.compute(
                chain([first], shards), on_rows=meter.advance, before_write=before_write
            ):
                claims.release(shard_name(shard))
                del left[shard]

    def _claimed(self, left: dict[int, _State], claims: Claims, meter: Meter) -> Iterator[int]:
        """Claim, one after the other, the shards that nobody works on; drop those that are there.

        A shard that was written since its state in `left` is there: whether it is whole shows
        when all of them are read for the summary.
        """
        for shard in list(left):
            path = self.folder / shard_name(shard)
            if _state(path) == left[shard] and claims.take(path.name):
                if _state(path) == left[shard]:
                    yield shard
                    continue
                claims.release(path.name)
            if _state(path) != left[shard]:
                del left[shard]
                meter.found(shard)

    def _invalid_rows(self, missing: Collection[int]) -> dict[int, int]:
        """Return how many rows are invalid in each shard that is whole and has some."""
        whole = [shard for shard in self._shards if shard not in missing]
        found = {
            shard: len(read_shard(self.folder / shard_name(shard), self.plan, shard).reasons)
            for shard in whole
        }
        return {shard: count for shard, count in found.items() if count}

    @property
    def _shards(self) -> range:
        return self.part.shards(self.plan.num_shards)

    def _summarise(self, head_classes: str, run: RunFacts) -> None:
        write_summary(
            self.folder,
            self.plan,
            self.work.manifest,
            head=self.head,
            head_classes=head_classes,
            run=run,
        )

    def _judged_again(self, finished: CacheSplit, claims: Claims) -> CacheSplit:
        """Return a complete split whose summary is about this command's head and weights.

        The head is judged again on what is stored where it or the names of its rows differ from
        what was judged, and where this command names them; a summary of an earlier version does
        not say all of that.
        """
        told = finished.summary
        run = replace(told.run, weights=self._weights)
        if run.root is not None and not Path(run.root).is_absolute():  # of an earlier version
            run = replace(run, root=self._root)
        if self.head_names.source != NAMED_EARLIER:
            run = replace(run, head_classes=self.head_names.file)
        tensors = None if self.head is None else tensors_sha256(self.head)
        names = None if self.head is None else self.head.class_names
        has_names = names is not None
        is_judged = (tensors, names_sha256(names)) == (
            told.head.tensors,
            told.head.names,
        ) and not self.names_given
        if is_judged and run == told.run:
            return finished
        with claims.holding(SUMMARY_FILE):
            self._summarise(self.head_names.source if has_names else UNKNOWN, run)
        return open_split(self.folder)

    @property
    def _root(self) -> str:
        """Where the images are, from any working folder."""
        return str(self.work.root.absolute())

    @property
    def _weights(self) -> str | None:
        """Where the file of the weights is; None for timm's own."""
        path = self.work.backbone.config.weights
        return None if path is None else str(path.absolute())

    def _finished(self) -> CacheSplit | None:
        try:
            return open_split(self.folder)
        except CacheError:
            return None

    def _missing_shards(self, finished: CacheSplit | None) -> tuple[list[int], list[str]]:
        """Return the shards to compute, and why those of them that exist do not count."""
        missing, replaced = [], []
        for shard in self._shards:
            path = self.folder / shard_name(shard)
            if finished is not None:
                problem = verify_shard(finished, shard)
            else:
                problem = shard_problem(path, self.plan, shard)
            if problem is not None:
                missing.append(shard)
                if path.exists():
                    replaced.append(problem)
        return missing, replaced

    def _withdraw_summary(self) -> None:
        """Remove `cache.json`: a kill must not leave digests of what is no longer there.

        Not before a shard is computed: what stops the run earlier leaves the cache as it was.
        """
        path = self.folder / SUMMARY_FILE
        if path.exists():
            path.unlink()
            flush_folder(self.folder)

    def _facts(self, computed: int, started: datetime, elapsed_s: float) -> RunFacts:
        """Return how the features came about, as far as this process has computed them."""
        # Seconds of several workers overlap, and those of one leave out that it waits for others.
        seconds = self.work.timing.busy if self.crew is None else elapsed_s
        return RunFacts(
            root=self._root,
            weights=self._weights,
            head_classes=self.head_names.file,
            started=started.isoformat(timespec="seconds"),
            device=self.work.backbone.config.device if self.crew is None else self.plan.device,
            workers=self.work.workers,
            max_pixels=self.work.max_pixels,
            computed_rows=computed,
            images_per_s=computed / seconds if seconds else None,
            seconds=dict(self.work.timing.seconds),
            shares=self.work.timing.shares(),
            bound=self.work.timing.bound,
            versions={name: version(name) for name in ("clinit", "torch", "timm", "h5py")},
            command=self.command,
        )


def _state(path: Path) -> _State:
    try:
        status = path.stat()
    except FileNotFoundError:
        return None
    return status.st_ino, status.st_size, status.st_mtime_ns

"""Extract one split: find the shards that are missing, have them computed, write the summary."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import cached_property
from importlib.metadata import version
from pathlib import Path

from clinit.errors import CacheError, ClinitError, ManifestError
from clinit.extract.cache.head import Head, Top1, store_head, tensors_sha256
from clinit.extract.cache.plan import FILE as PLAN_FILE
from clinit.extract.cache.plan import WHOLE, Part, Plan, settle_plan, shard_name
from clinit.extract.cache.read import (
    HEAD_FILE,
    CacheSplit,
    open_split,
    shard_problem,
    verify_shard,
)
from clinit.extract.cache.shard import read_shard
from clinit.extract.cache.summary import FILE as SUMMARY_FILE
from clinit.extract.cache.summary import UNKNOWN, RunFacts, names_sha256, write_summary
from clinit.extract.dataset.manifest import read_manifest, write_manifest
from clinit.extract.head_names import NAMED_EARLIER, HeadNames
from clinit.extract.work.shard_work import Meter, Progress, ShardWork
from clinit.files.commit import flush_folder
from clinit.files.lock import claim_file, claimed_names

MANIFEST_FILE = "manifest.parquet"


@dataclass(frozen=True, kw_only=True)
class SplitResult:
    """What came of one split, or of a part of it."""

    plan: Plan
    path: Path
    """The folder of the split."""
    part: Part = WHOLE
    """The part whose shards were looked at."""
    computed_rows: int = 0
    """Rows extracted in this run; 0 where the part was complete."""
    replaced_shards: tuple[str, ...] = ()
    """Why a shard that was there has been computed again."""
    retried_rows: int | None = None
    """Invalid rows whose images were read again; None where that was not asked for."""
    shards_there: int
    """Shards of all parts that are there."""
    problem: str = ""
    """What is wrong with a shard of another part, where all are there."""
    run: RunFacts | None = None
    """How this run has computed its rows; None where it computed none."""

    @property
    def is_complete(self) -> bool:
        """Whether the split is there, of all parts."""
        return self.shards_there == self.plan.num_shards and not self.problem

    @cached_property
    def split(self) -> CacheSplit:
        """The complete split."""
        return open_split(self.path)

    @property
    def top1(self) -> Top1:
        """Accuracy of the stored head, on the rows whose class it knows."""
        return self.split.summary.head.top1


@dataclass(slots=True, eq=False, kw_only=True)
class SplitRun:
    """The extraction of one split: find the shards that are missing, have them computed."""

    work: ShardWork
    part: Part = WHOLE
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
    on_progress: Callable[[Progress], None]

    def run(self) -> SplitResult:
        """Extract what is missing of this part; complete the split if all parts are there.

        Raises:
            ClinitError: If another process extracts the same part, the folder belongs to another
                extraction, or the storage fails.
        """
        with self._claimed():
            self._begin()
            finished = self._finished()
            missing, replaced = self._missing_shards(finished)
            retried = self._invalid_rows(missing) if self.retry_invalid else {}
            todo = sorted({*missing, *retried})
            meter, started = Meter(self.work, self.part, todo, self.on_progress), datetime.now(UTC)
            for _ in self.work.compute(
                todo,
                on_rows=meter.advance,
                before_write=lambda shard: self._withdraw_summary() if shard in retried else None,
            ):
                pass
            facts, problem = self._facts(meter.computed, started), ""
            there = sum((self.folder / shard_name(n)).exists() for n in range(self.plan.num_shards))
            if there == self.plan.num_shards:
                if finished is not None and not todo:
                    self._judge_again(finished)
                else:
                    problem = self._complete(facts)
        return SplitResult(
            plan=self.plan,
            path=self.folder,
            part=self.part,
            computed_rows=meter.computed,
            replaced_shards=tuple(replaced),
            retried_rows=sum(retried.values()) if self.retry_invalid else None,
            shards_there=there,
            problem=problem,
            run=facts if meter.computed else None,
        )

    def _complete(self, facts: RunFacts) -> str:
        """Write the summary; return what is wrong with a shard of another part."""
        try:
            self._summarise(self.head_names.source, facts)
        except CacheError as error:
            if self.part == WHOLE:
                raise
            return str(error)
        return ""

    @contextmanager
    def _claimed(self) -> Iterator[None]:
        """Be the only process that extracts this part, and remove the drafts of killed ones."""
        drafts_of = [shard_name(shard) for shard in self._shards]
        with claim_file(self.folder / self.part.name, drafts_of=drafts_of):
            for other in claimed_names(self.folder, "part-*"):
                if not other.endswith(f"-of-{self.part.count}"):
                    raise ClinitError(
                        f"another process extracts {other} into {self.folder}, this one"
                        f" {self.part.name}: they have shards in common",
                        remedy="Give both the same number of parts, or wait for the other one.",
                    )
            yield

    @property
    def plan(self) -> Plan:
        """Which rows go to which shard."""
        return self.work.plan

    @property
    def folder(self) -> Path:
        """The folder of the split."""
        return self.work.folder

    def _begin(self) -> None:
        """Write what stands beside the shards, where it is not there."""
        with _alone(self.folder / PLAN_FILE):
            settle_plan(self.plan, self.folder)
        if self.head is not None and self.work.view is None:
            stored = store_head(self.head, self.folder.parent / HEAD_FILE)
            if stored.class_names != self.head.class_names:
                self.head = stored
                self.head_names = HeadNames(stored.class_names, NAMED_EARLIER)
        if not self._has_manifest():
            with _alone(self.folder / MANIFEST_FILE):
                write_manifest(self.work.manifest, self.folder / MANIFEST_FILE)

    def _has_manifest(self) -> bool:
        try:
            return read_manifest(self.folder / MANIFEST_FILE).digest == self.work.manifest.digest
        except ManifestError:
            return False

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
        # One after the other: whoever has written a shard last also reads it last.
        with _alone(self.folder / SUMMARY_FILE):
            write_summary(
                self.folder,
                self.plan,
                self.work.manifest,
                head=self.head,
                head_classes=head_classes,
                run=run,
            )

    def _judge_again(self, finished: CacheSplit) -> None:
        """Let the summary of a complete split be about this command's head and weights.

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
        is_judged = (tensors, names_sha256(names)) == (told.head.tensors, told.head.names)
        if self.names_given or not is_judged or run != told.run:
            self._summarise(UNKNOWN if names is None else self.head_names.source, run)

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

    def _facts(self, computed: int, started: datetime) -> RunFacts:
        """Return how the features came about, as far as this process has computed them."""
        seconds = self.work.timing.busy
        return RunFacts(
            root=self._root,
            weights=self._weights,
            head_classes=self.head_names.file,
            started=started.isoformat(timespec="seconds"),
            device=self.work.backbone.config.device,
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


@contextmanager
def _alone(path: Path) -> Iterator[None]:
    """Write a file that other parts may be about to write as well, after them if need be."""
    with claim_file(path, on_busy=lambda: None):
        yield

"""Extract one split: find the shards that are missing, compute them, write the summary."""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import cached_property, partial
from importlib.metadata import version
from itertools import chain, islice
from pathlib import Path
from typing import Protocol, runtime_checkable

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from clinit.errors import CacheError, ClinitError, ImageError, ManifestError
from clinit.extract.cache.head import Head, Top1, store_head, tensors_sha256
from clinit.extract.cache.plan import FILE as PLAN_FILE
from clinit.extract.cache.plan import WHOLE, Part, Plan, settle_plan, shard_name
from clinit.extract.cache.read import HEAD_FILE, CacheSplit, open_split, shard_problem
from clinit.extract.cache.shard import Shard, assemble, read_shard, write_shard
from clinit.extract.cache.summary import FILE as SUMMARY_FILE
from clinit.extract.cache.summary import UNKNOWN, RunFacts, names_sha256, write_summary
from clinit.extract.dataset.decode import MISSING
from clinit.extract.dataset.images import images_of
from clinit.extract.dataset.manifest import Manifest, read_manifest, write_manifest
from clinit.extract.head_names import NAMED_EARLIER, HeadNames
from clinit.extract.network.backbone import BackboneConfig
from clinit.extract.network.transform import Transform
from clinit.extract.views import View
from clinit.extract.work.pipeline import ImageBatch, Timing, features_of, load_batches
from clinit.extract.work.settings import Settings
from clinit.files.commit import flush_folder
from clinit.files.lock import claim_file, claimed_names
from clinit.files.paths import exists
from clinit.stopwatch import Stopwatch

MANIFEST_FILE = "manifest.parquet"
_alone = partial(claim_file, on_busy=lambda: None)
"""Locks a file that processes of other parts may also write; waits until it is free."""
_SAMPLE = 200
"""Images to look for before a folder is reported as the wrong one."""


@dataclass(frozen=True, slots=True)
class Progress:
    """Progress of the extraction of a split."""

    split: str
    rows_done: int
    """Rows in finished batches and in existing shards."""
    rows_total: int


@runtime_checkable
class Extractor(Protocol):
    """A network that computes the values to store: a backbone, or its first blocks."""

    @property
    def config(self) -> BackboneConfig:
        """Which network, and how it computes."""
        ...

    def features(self, batch: Float[Tensor, "batch 3 height width"]) -> Float[Tensor, "batch ..."]:
        """Return the values to store for normalised images, in float32."""
        ...


@dataclass(frozen=True, kw_only=True)
class SplitResult:
    """Result of extracting one split, or a part of it."""

    plan: Plan
    path: Path
    part: Part = WHOLE
    """The part of the shards that this run was for."""
    computed_rows: int = 0
    """Number of rows computed in this run; 0 if the part was complete."""
    replaced_shards: tuple[str, ...] = ()
    """The fault of each damaged shard, which was computed again."""
    retried_rows: int | None = None
    """Number of invalid rows whose images were read again; None without `retry_invalid`."""
    shards_there: int
    """Number of existing shards of all parts."""
    problem: str = ""
    """If shards of all parts exist, the fault in a shard of another part; else empty."""
    run: RunFacts | None = None
    """How this run computed its rows; None if it computed no row."""

    @property
    def is_complete(self) -> bool:
        """Whether all parts of the split are complete."""
        return self.shards_there == self.plan.num_shards and not self.problem

    @cached_property
    def split(self) -> CacheSplit:
        """The complete split."""
        return open_split(self.path)

    @property
    def top1(self) -> Top1:
        """Accuracy of the stored head, on images of the classes that it has a row for."""
        return self.split.summary.head.top1


@dataclass(slots=True, eq=False, kw_only=True)
class SplitRun:
    """The extraction of one split: find the shards that are missing, compute and write them."""

    plan: Plan
    manifest: Manifest
    root: Path
    """The folder that the paths in the manifest start from."""
    folder: Path
    backbone: Extractor
    transform: Transform
    view: View | None = None
    """The view whose random crops replace `transform`'s centre crops, if any."""
    settings: Settings
    part: Part = WHOLE
    """The shards that this process may compute."""
    head: Head | None
    """The pretrained head. It is stored in the cache (not for a view), and its accuracy on the
    features in the summary."""
    head_names: HeadNames
    on_progress: Callable[[Progress], None]
    on_image: Callable[[str, bytes], object] | None = None
    """Called with path and content of each image that is read, by several threads."""
    timing: Timing = field(default_factory=Timing)

    def run(self) -> SplitResult:
        """Compute the missing shards of this part; if all parts exist, complete the split.

        Raises:
            ClinitError: If another process extracts the same part, the folder belongs to another
                extraction, or the storage fails.
        """
        plan = self.plan
        with self._claimed():
            self._begin()
            finished = None
            with suppress(CacheError):
                finished = open_split(self.folder)
            missing, retried = self._missing_shards(finished)
            todo = sorted({*missing, *retried})
            started, computed = datetime.now(UTC), self._compute(todo, retried)
            facts, problem = self._facts(computed, started), ""
            there = sum(exists(self.folder / shard_name(n)) for n in range(plan.num_shards))
            if there == plan.num_shards and finished is not None and not todo:
                self._judge_again(finished, facts)
            elif there == plan.num_shards:
                try:
                    self._summarise(self.head_names.source, facts)
                except CacheError as error:
                    if self.part == WHOLE:
                        raise
                    problem = str(error)
        return SplitResult(
            plan=plan,
            path=self.folder,
            part=self.part,
            computed_rows=computed,
            replaced_shards=tuple(why for why in missing.values() if why),
            retried_rows=sum(retried.values()) if self.settings.retry_invalid else None,
            shards_there=there,
            problem=problem,
            run=facts if computed else None,
        )

    @property
    def _shards(self) -> range:
        return self.part.shards(self.plan.num_shards)

    @contextmanager
    def _claimed(self) -> Iterator[None]:
        """Make this the only process that extracts the part; remove drafts of killed processes."""
        drafts_of = [shard_name(shard) for shard in self._shards]
        with claim_file(self.folder / self.part.name, drafts_of=drafts_of):
            for other in claimed_names(self.folder, "part-*"):
                if not other.endswith(f"-of-{self.part.count}"):
                    raise ClinitError(
                        f"another process extracts {other} into {self.folder}, this process"
                        f" {self.part.name}: some shards belong to both parts",
                        remedy="Give both the same number of parts, or wait for the other process.",
                    )
            yield

    def _begin(self) -> None:
        """Write the plan, the head and the manifest unless they exist."""
        with _alone(self.folder / PLAN_FILE):
            settle_plan(self.plan, self.folder)
        if self.head is not None and self.view is None:
            stored = store_head(self.head, self.folder.parent / HEAD_FILE)
            if stored.class_names != self.head.class_names:
                self.head = stored
                self.head_names = HeadNames(stored.class_names, NAMED_EARLIER)
        path = self.folder / MANIFEST_FILE
        with suppress(ManifestError):
            if read_manifest(path).digest == self.manifest.digest:
                return
        with _alone(path):
            write_manifest(self.manifest, path)

    def _missing_shards(self, finished: CacheSplit | None) -> tuple[dict[int, str], dict[int, int]]:
        """Return the shards to compute.

        Returns:
            The fault of each damaged shard, an empty text for an absent shard; and with
            `retry_invalid`, the number of invalid rows of each other shard that has any.
        """
        missing, retried = dict[int, str](), dict[int, int]()
        for shard in self._shards:
            path = self.folder / shard_name(shard)
            problem = shard_problem(self.folder, self.plan, shard, finished)
            if problem is not None:
                missing[shard] = problem if exists(path) else ""
            elif self.settings.retry_invalid and (
                rows := read_shard(path, self.plan, shard).reasons
            ):
                retried[shard] = len(rows)
        return missing, retried

    def _compute(self, todo: list[int], retried: Collection[int]) -> int:
        """Compute and write shards; return their number of rows.

        `retried` are the shards that exist and are replaced.
        """
        done = 0
        total = sum(len(self.plan.rows(shard)) for shard in self._shards)
        found = total - sum(len(self.plan.rows(shard)) for shard in todo)

        def advance(rows: int) -> None:
            nonlocal done
            done += rows
            self.on_progress(Progress(self.plan.title, found + done, total))

        for index, shard in self._shards_of(todo, advance):
            with self.timing.phase("write"):
                if index in retried:
                    self._withdraw_summary()
                path = self.folder / shard_name(index)
                write_shard(shard, path, plan=self.plan, index=index)
        return done

    def _withdraw_summary(self) -> None:
        """Remove `cache.json`, so that a kill leaves no digests of replaced shards.

        This happens only when a shard is computed, so a run that stops earlier changes nothing.
        """
        path = self.folder / SUMMARY_FILE
        if exists(path):
            path.unlink()
            flush_folder(self.folder)

    def _summarise(self, head_classes: str, run: RunFacts) -> None:
        # Only one process at a time: the one that wrote the last shard is also the last to read.
        with _alone(self.folder / SUMMARY_FILE):
            write_summary(
                self.folder,
                self.plan,
                self.manifest,
                head=self.head,
                head_classes=head_classes,
                run=run,
            )

    def _judge_again(self, finished: CacheSplit, facts: RunFacts) -> None:
        """Update the summary of a complete split with this command's images, weights and head.

        The accuracy of the head is computed again if its weights or class names have changed since,
        if the summary of an earlier version lacks their digests, or if the user names the rows.
        """
        told = finished.summary
        run = replace(told.run, root=facts.root, weights=facts.weights)
        if self.head_names.source != NAMED_EARLIER:
            run = replace(run, head_classes=facts.head_classes)
        tensors = None if self.head is None else tensors_sha256(self.head)
        names = None if self.head is None else self.head.class_names
        is_judged = (tensors, names_sha256(names)) == (told.head.tensors, told.head.names)
        if self.settings.head_classes is not None or not is_judged or run != told.run:
            self._summarise(UNKNOWN if names is None else self.head_names.source, run)

    def _facts(self, computed: int, started: datetime) -> RunFacts:
        timing, weights = self.timing, self.backbone.config.weights
        return RunFacts(
            root=str(self.root.absolute()),
            weights=None if weights is None else str(weights.absolute()),
            head_classes=self.head_names.file,
            started=started.isoformat(timespec="seconds"),
            device=self.backbone.config.device,
            workers=self.settings.threads,
            max_pixels=self.settings.max_pixels,
            computed_rows=computed,
            images_per_s=computed / timing.busy if timing.busy else None,
            seconds=dict(timing.seconds),
            shares=timing.shares(),
            bound=timing.bound,
            versions={name: version(name) for name in ("clinit", "torch", "timm", "h5py")},
            command=self.settings.command,
        )

    def _shards_of(
        self, shards: Iterable[int], on_rows: Callable[[int], None]
    ) -> Iterator[tuple[int, Shard]]:
        """Compute shards; yield the index and the content of each.

        Args:
            shards: Indices of the shards. The decoders take images of the next shard while the
                features of the last one are computed, so reading does not pause between shards.
            on_rows: Called with the number of rows of every finished batch.

        Raises:
            ClinitError: If the storage fails, or an image is bad and `settings.strict` is set.
        """
        is_first = True
        with closing(self._images(shards)) as batches:
            for first in batches:
                index = first.rows[0] // self.plan.shard_rows
                count = -(-len(self.plan.rows(index)) // self.plan.batch_size)
                arrivals = chain([first], islice(batches, count - 1))
                shard = self._compute_shard(self.plan.rows(index), arrivals, on_rows)
                if is_first:
                    self._refuse_wrong_root(self.plan.rows(index), shard.reasons)
                    is_first = False
                yield index, shard

    def _compute_shard(
        self, rows: range, batches: Iterable[ImageBatch], on_rows: Callable[[int], None]
    ) -> Shard:
        device = torch.device(self.backbone.config.device)
        normalise = self.transform.normaliser(device)
        features = np.zeros((len(rows), *(self.plan.shape or (self.plan.dim,))), dtype=np.float32)
        reasons: dict[int, str] = {}
        computed = features_of(
            batches, lambda pixels: self.backbone.features(normalise(pixels)), device, self.timing
        )
        with closing(computed):
            for batch, found in computed:
                first = batch.rows[0] - rows.start
                features[first : first + len(batch.rows)] = found.numpy()
                reasons |= {row - rows.start: why for row, why in batch.reasons.items()}
                on_rows(len(batch.rows))
        labels = self.manifest.table["label"][rows.start : rows.stop].to_numpy()
        return assemble(features, labels, reasons, dtype=self.plan.dtype)

    def _images(self, shards: Iterable[int]) -> Generator[ImageBatch]:
        """Yield batches of the images of `shards`; no batch contains images of two shards."""
        size = self.plan.batch_size
        loaded = load_batches(
            images_of(self.manifest.table, self.root, self.on_image),
            (
                range(start, min(start + size, rows.stop))
                for rows in map(self.plan.rows, shards)
                for start in range(rows.start, rows.stop, size)
            ),
            self.transform,
            workers=self.settings.threads,
            max_pixels=self.settings.max_pixels,
            pin_memory=self.backbone.config.device.startswith("cuda"),
            view=self.view,
            for_device=self.settings.decoder == "cuda",
        )
        with closing(loaded) as batches:
            while True:
                waited = Stopwatch()
                batch = next(batches, None)
                if batch is None:
                    return
                self.timing.add_wait(waited.total, read=batch.read_s, decode=batch.decode_s)
                if self.settings.strict and batch.reasons:
                    row, reason = min(batch.reasons.items())
                    raise ImageError(
                        f"{self.root / self.manifest.table['path'][row]} (row {row:,}): {reason}",
                        remedy="Replace the file, or leave out `--strict` to mark its row invalid.",
                    )
                yield batch

    def _refuse_wrong_root(self, rows: range, reasons: Mapping[int, str]) -> None:
        """Stop if all files are missing: then probably `root` is wrong."""
        if len(reasons) < len(rows) or set(reasons.values()) != {MISSING}:
            return
        # A sample of all rows, so that every shard and every process decides alike.
        paths = self.manifest.table["path"]
        sample = range(0, len(paths), max(1, len(paths) // _SAMPLE))
        if not any(exists(self.root / paths[row]) for row in sample):
            raise ManifestError(
                f"{self.root} contains none of the {len(rows):,} images from {paths[rows.start]}"
                " on",
                remedy="Give the folder that the paths of the manifest start from with `--root`.",
            )

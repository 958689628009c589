"""Extract one split: find the shards that are missing, compute them, write the summary."""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Protocol, runtime_checkable

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from clinit.errors import CacheError, ImageError, ManifestError
from clinit.extract.augment import View
from clinit.extract.backbone import BackboneConfig
from clinit.extract.cache import (
    HEAD_FILE,
    CacheSplit,
    open_split,
    shard_problem,
    verify_shard,
)
from clinit.extract.commit import flush_folder
from clinit.extract.decode import MISSING
from clinit.extract.head import Head, Top1, store_head, tensors_sha256
from clinit.extract.image_size import MAX_PIXELS
from clinit.extract.images import images_of
from clinit.extract.loader import ImageBatch, load_batches
from clinit.extract.manifest import Manifest, write_manifest
from clinit.extract.pipeline import Compute, features_of
from clinit.extract.plan import Plan, settle_plan, shard_name
from clinit.extract.shard import assemble, read_shard, write_shard
from clinit.extract.stopwatch import Stopwatch
from clinit.extract.summary import UNKNOWN, RunFacts, write_summary
from clinit.extract.timing import Timing
from clinit.extract.transform import Transform


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

    @property
    def top1(self) -> Top1:
        """Accuracy of the stored head, on the rows whose class it knows."""
        return self.split.summary.head.top1


@runtime_checkable
class Extractor(Protocol):
    """What is run over the images: a backbone, or its first part."""

    @property
    def config(self) -> BackboneConfig:
        """Which network, and how it computes."""
        ...

    def features(self, batch: Float[Tensor, "batch 3 height width"]) -> Float[Tensor, "batch ..."]:
        """Return what is stored of normalised images, in float32."""
        ...


@dataclass(slots=True, eq=False, kw_only=True)
class SplitRun:
    """The extraction of one split."""

    plan: Plan
    manifest: Manifest
    root: Path
    folder: Path
    backbone: Extractor
    transform: Transform
    view: View | None = None
    """Random crops instead of what `transform` shows."""
    head: Head | None
    """The pretrained head, stored beside the split (not a view) and judged on it."""
    head_classes: str
    """Where the class names of the head came from."""
    names_given: bool
    """Whether this command names the head's rows."""
    workers: int
    strict: bool
    max_pixels: int = MAX_PIXELS
    """Largest image that is decoded, in pixels; see `decode`."""
    retry_invalid: bool = False
    """Whether shards with invalid rows are computed again."""
    on_progress: Callable[[Progress], None]
    timing: Timing = field(default_factory=Timing)

    def run(self) -> SplitResult:
        """Extract what is missing.

        Raises:
            ClinitError: If the folder belongs to another extraction or the storage fails.
        """
        settle_plan(self.plan, self.folder)
        if self.head is not None and self.view is None:
            store_head(self.head, self.folder.parent / HEAD_FILE)
        write_manifest(self.manifest, self.folder / "manifest.parquet")
        finished = self._finished()
        missing, replaced = self._missing_shards(finished)
        retried = self._invalid_rows(missing) if self.retry_invalid else {}
        retried_rows = sum(retried.values()) if self.retry_invalid else None
        missing = sorted({*missing, *retried})
        if finished is not None and not missing:
            return SplitResult(self._judged_again(finished), 0, (), retried_rows)
        started = datetime.now(UTC)
        with closing(self._batches(missing)) as batches:
            self._compute(missing, batches, replaced=retried.keys())
        computed = sum(len(self.plan.rows(shard)) for shard in missing)
        self._summarise(self.head_classes, self._facts(computed, started))
        return SplitResult(open_split(self.folder), computed, tuple(replaced), retried_rows)

    def _invalid_rows(self, missing: list[int]) -> dict[int, int]:
        """Return how many rows are invalid in each shard that is whole and has some."""
        whole = [shard for shard in range(self.plan.num_shards) if shard not in missing]
        found = {
            shard: len(read_shard(self.folder / shard_name(shard), self.plan, shard).reasons)
            for shard in whole
        }
        return {shard: count for shard, count in found.items() if count}

    def _summarise(self, head_classes: str, run: RunFacts) -> None:
        write_summary(
            self.folder,
            self.plan,
            self.manifest,
            head=self.head,
            head_classes=head_classes,
            run=run,
        )

    def _judged_again(self, finished: CacheSplit) -> CacheSplit:
        """Return a complete split whose summary is about this command's head and weights.

        The head is judged again on what is stored where it differs from the one that was judged,
        where this command names its rows or where they had no names; a summary of an earlier
        version does not say which head was judged.
        """
        told = finished.summary
        run = replace(told.run, weights=self._weights)
        tensors = None if self.head is None else tensors_sha256(self.head)
        has_names = self.head is not None and self.head.class_names is not None
        newly_named = has_names and told.head.class_names == UNKNOWN
        is_judged = tensors == told.head.tensors and not newly_named and not self.names_given
        if is_judged and run == told.run:
            return finished
        self._summarise(self.head_classes if has_names else UNKNOWN, run)
        return open_split(self.folder)

    @property
    def _weights(self) -> str | None:
        """Where the file of the weights is; None for timm's own."""
        path = self.backbone.config.weights
        return None if path is None else str(path.absolute())

    def _finished(self) -> CacheSplit | None:
        try:
            return open_split(self.folder)
        except CacheError:
            return None

    def _missing_shards(self, finished: CacheSplit | None) -> tuple[list[int], list[str]]:
        """Return the shards to compute, and why those of them that exist do not count."""
        missing, replaced = [], []
        for shard in range(self.plan.num_shards):
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

    def _batches(self, shards: list[int]) -> Generator[ImageBatch]:
        """Yield the images of `shards`; no batch crosses the border of a shard."""
        size = self.plan.batch_size
        batches = [
            range(start, min(start + size, rows.stop))
            for rows in map(self.plan.rows, shards)
            for start in range(rows.start, rows.stop, size)
        ]
        yield from load_batches(
            images_of(self.manifest.table, self.root),
            batches,
            self.transform,
            workers=self.workers,
            max_pixels=self.max_pixels,
            pin_memory=self.backbone.config.device.startswith("cuda"),
            view=self.view,
        )

    def _compute(
        self, shards: list[int], batches: Iterator[ImageBatch], replaced: Collection[int]
    ) -> None:
        """Compute shards and write them.

        Args:
            shards: Which ones.
            batches: The images of their rows.
            replaced: Those of them that are whole, and get other content.
        """
        labels = self.manifest.table["label"].to_numpy()
        todo = sum(len(self.plan.rows(shard)) for shard in shards)
        rows_before, watch = self.plan.num_rows - todo, Stopwatch()
        done = 0
        device = torch.device(self.backbone.config.device)
        compute = self._forward(device)
        for shard in shards:
            rows = self.plan.rows(shard)
            shape = self.plan.shape or (self.plan.dim,)
            features = np.zeros((len(rows), *shape), dtype=np.float32)
            reasons: dict[int, str] = {}
            arrivals = (self._next(batches) for _ in range(-(-len(rows) // self.plan.batch_size)))
            # All features of a shard are back before it is written.
            with closing(features_of(arrivals, compute, device, self.timing)) as computed:
                for batch, found in computed:
                    first = batch.rows.start - rows.start
                    features[first : first + len(batch.rows)] = found.numpy()
                    reasons |= {row - rows.start: why for row, why in batch.reasons.items()}
                    done += len(batch.rows)
                    self._report(rows_before + done, done / watch.total)
            self._refuse_wrong_root(shard == shards[0], rows, reasons)
            with self.timing.phase("write"):
                if shard in replaced:
                    self._withdraw_summary()
                write_shard(
                    assemble(
                        features, labels[rows.start : rows.stop], reasons, dtype=self.plan.dtype
                    ),
                    self.folder / shard_name(shard),
                    plan=self.plan,
                    index=shard,
                )

    def _withdraw_summary(self) -> None:
        """Remove `cache.json`: a kill must not leave digests of what is no longer there.

        Not before a shard is computed: what stops the run earlier leaves the cache as it was.
        """
        path = self.folder / "cache.json"
        if path.exists():
            path.unlink()
            flush_folder(self.folder)

    def _next(self, batches: Iterator[ImageBatch]) -> ImageBatch:
        waited = Stopwatch()
        batch = next(batches)
        self.timing.add_wait(waited.total, read=batch.read_s, decode=batch.decode_s)
        if self.strict and batch.reasons:
            row, reason = min(batch.reasons.items())
            raise ImageError(
                f"{self.root / self.manifest.table['path'][row]} (row {row:,}): {reason}",
                remedy="Replace the file, or leave out `--strict` to mark its row invalid.",
            )
        return batch

    def _refuse_wrong_root(self, first: bool, rows: range, reasons: Mapping[int, str]) -> None:
        """Stop where not one file is in its place: then it is not the files that are wrong."""
        if first and len(reasons) == len(rows) and set(reasons.values()) == {MISSING}:
            raise ManifestError(
                f"none of the {len(rows):,} images from"
                f" {self.manifest.table['path'][rows.start]} on is in {self.root}",
                remedy="Give the folder that the paths of the manifest start from with `--root`.",
            )

    def _forward(self, device: torch.device) -> Compute:
        """Return what turns pixels on `device` into features there."""
        normalise = self.transform.normaliser(device)
        return lambda pixels: self.backbone.features(normalise(pixels))

    def _report(self, rows_done: int, images_per_s: float) -> None:
        shares = self.timing.shares()
        self.on_progress(
            Progress(self.plan.title, rows_done, self.plan.num_rows, images_per_s, shares)
        )

    def _facts(self, computed: int, started: datetime) -> RunFacts:
        seconds = self.timing.busy
        return RunFacts(
            root=str(self.root),
            weights=self._weights,
            started=started.isoformat(timespec="seconds"),
            device=self.backbone.config.device,
            workers=self.workers,
            max_pixels=self.max_pixels,
            computed_rows=computed,
            images_per_s=computed / seconds if seconds else None,
            seconds=dict(self.timing.seconds),
            shares=self.timing.shares(),
            bound=self.timing.bound,
            versions={name: version(name) for name in ("clinit", "torch", "timm", "h5py")},
        )

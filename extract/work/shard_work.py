"""The work of an extraction: images of the rows of shards in, finished shards out, and its time."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, runtime_checkable

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from clinit.errors import ImageError, ManifestError
from clinit.extract.cache.plan import Plan, shard_name
from clinit.extract.cache.shard import Shard, assemble, write_shard
from clinit.extract.dataset.decode import MISSING
from clinit.extract.dataset.images import Images, images_of
from clinit.extract.dataset.known import MAX_PIXELS
from clinit.extract.dataset.manifest import Manifest
from clinit.extract.network.backbone import BackboneConfig
from clinit.extract.network.transform import Transform
from clinit.extract.views import View
from clinit.extract.work.pipeline import Compute, ImageBatch, Timing, features_of, load_batches
from clinit.stopwatch import Stopwatch

if TYPE_CHECKING:
    from clinit.extract.cache.plan import Part


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


_SAMPLE = 200
"""Images whose places are looked at before a folder is said to be the wrong one."""


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
class ShardWork:
    """What it takes to compute the shards of a plan."""

    plan: Plan
    manifest: Manifest
    root: Path
    folder: Path
    backbone: Extractor
    transform: Transform
    view: View | None = None
    """Random crops instead of what `transform` shows."""
    workers: int
    strict: bool
    max_pixels: int = MAX_PIXELS
    """Largest image that is decoded, in pixels; see `decode`."""
    timing: Timing = field(default_factory=Timing)
    _content: Images | None = field(default=None, init=False)

    def compute(
        self,
        shards: Iterable[int],
        *,
        on_rows: Callable[[int], None],
        before_write: Callable[[int], None] = lambda shard: None,
    ) -> Iterator[int]:
        """Compute shards and write them; yield each one when it is there.

        Args:
            shards: Which ones. The next is asked for when the images of the one before have been
                handed to the decoders, so reading does not pause between two shards.
            on_rows: Told the number of rows of every batch that is done.
            before_write: Called with each shard before it is written.

        Raises:
            ClinitError: If the storage fails, or an image is bad and `strict` is set.
        """
        device = torch.device(self.backbone.config.device)
        compute = self._forward(device)
        is_first = True
        with closing(self._images(shards)) as batches:
            for first in batches:
                shard = first.rows[0] // self.plan.shard_rows
                count = -(-len(self.plan.rows(shard)) // self.plan.batch_size)
                arrivals = chain([first], islice(batches, count - 1))
                found = self._compute_shard(shard, arrivals, compute, device, on_rows)
                if is_first:
                    self._refuse_wrong_root(shard, found.reasons)
                    is_first = False
                with self.timing.phase("write"):
                    before_write(shard)
                    path = self.folder / shard_name(shard)
                    write_shard(found, path, plan=self.plan, index=shard)
                yield shard

    def _compute_shard(
        self,
        shard: int,
        batches: Iterable[ImageBatch],
        compute: Compute,
        device: torch.device,
        on_rows: Callable[[int], None],
    ) -> Shard:
        rows = self.plan.rows(shard)
        shape = self.plan.shape or (self.plan.dim,)
        features = np.zeros((len(rows), *shape), dtype=np.float32)
        reasons: dict[int, str] = {}
        # All features of a shard are back before it is written.
        with closing(features_of(batches, compute, device, self.timing)) as computed:
            for batch, found in computed:
                first = batch.rows[0] - rows.start
                features[first : first + len(batch.rows)] = found.numpy()
                reasons |= {row - rows.start: why for row, why in batch.reasons.items()}
                on_rows(len(batch.rows))
        labels = self.manifest.table["label"][rows.start : rows.stop].to_numpy()
        return assemble(features, labels, reasons, dtype=self.plan.dtype)

    def _images(self, shards: Iterable[int]) -> Generator[ImageBatch]:
        """Yield the images of `shards`; no batch crosses the border of a shard."""
        size = self.plan.batch_size
        loaded = load_batches(
            self._all_images(),
            (
                range(start, min(start + size, rows.stop))
                for rows in map(self.plan.rows, shards)
                for start in range(rows.start, rows.stop, size)
            ),
            self.transform,
            workers=self.workers,
            max_pixels=self.max_pixels,
            pin_memory=self.backbone.config.device.startswith("cuda"),
            view=self.view,
        )
        with closing(loaded) as batches:
            while True:
                waited = Stopwatch()
                batch = next(batches, None)
                if batch is None:
                    return
                self.timing.add_wait(waited.total, read=batch.read_s, decode=batch.decode_s)
                self._refuse_bad(batch)
                yield batch

    def _all_images(self) -> Images:
        """Return where the images are; made once, for a cluster computes shard by shard."""
        if self._content is None:
            self._content = images_of(self.manifest.table, self.root)
        return self._content

    def _refuse_bad(self, batch: ImageBatch) -> None:
        if self.strict and batch.reasons:
            row = min(batch.reasons)
            reason = batch.reasons[row]
            raise ImageError(
                f"{self.root / self.manifest.table['path'][row]} (row {row:,}): {reason}",
                remedy="Replace the file, or leave out `--strict` to mark its row invalid.",
            )

    def _refuse_wrong_root(self, shard: int, reasons: Mapping[int, str]) -> None:
        """Stop where not one file is in its place: then it is not the files that are wrong."""
        rows = self.plan.rows(shard)
        if len(reasons) < len(rows) or set(reasons.values()) != {MISSING}:
            return
        # Whichever shard it is, and whoever computes it: the same is refused.
        paths = self.manifest.table["path"]
        sample = range(0, len(paths), max(1, len(paths) // _SAMPLE))
        if not any((self.root / paths[row]).exists() for row in sample):
            raise ManifestError(
                f"none of the {len(rows):,} images from {paths[rows.start]} on is in {self.root}",
                remedy="Give the folder that the paths of the manifest start from with `--root`.",
            )

    def _forward(self, device: torch.device) -> Compute:
        """Return what turns pixels on `device` into features there."""
        normalise = self.transform.normaliser(device)
        return lambda pixels: self.backbone.features(normalise(pixels))

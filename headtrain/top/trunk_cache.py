"""The cache of activations, which are computed once.

Its format is the format of a feature cache, but a row has more than one axis. The trunk is
everything in front of the first *plastic* (trained) block. It is frozen, and images are not
augmented, so that its output for an image never changes. For each split of a feature cache, a
*part* contains the rows that the runs read, in a folder named by the digest of its plan. Runs with
the same rows, network and cut thus share a part, whatever their other settings.

Before activations are computed, the features of a few images are compared with the stored features,
because rows are matched by path, and a folder of other images may have the same paths.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import polars as pl
import torch
from jaxtyping import Float, Int
from torch import Tensor

from clinit.errors import CacheError
from clinit.extract.cache.plan import Plan
from clinit.extract.cache.read import CacheSplit, open_split
from clinit.extract.dataset.manifest import Manifest
from clinit.extract.work.options import Settings
from clinit.extract.work.recorded import NamedHead
from clinit.extract.work.split_run import SplitRun, compiled_alike
from clinit.files.lock import claim_folder
from clinit.headtrain.top.activations import (
    ActivationRows,
    ImageRows,
    StoredRows,
    Trunk,
    whole_images,
)
from clinit.headtrain.top.images import Storage
from clinit.machine import free_memory
from clinit.observer import Noted, Observer, Progressed

SHARD_BYTES = 2**27
"""Size of a shard: a killed run loses at most one shard."""
MEMORY_SHARE = 0.4
"""Share of the free memory that stored activations may take; larger parts stay in their files."""


@dataclass(frozen=True, slots=True, eq=False)
class Part:
    """Rows of one split of a feature cache that runs read."""

    name: str
    """Name for messages, such as `base train`."""
    split: CacheSplit
    root: Path
    """The folder of its images."""
    rows: Int[np.ndarray, " rows"]
    """Indices among the valid rows of the split; sorted, each once."""
    features: Float[np.ndarray, "valid dim"]
    """Features of all valid rows, as stored in the split."""

    def valid(self) -> pl.DataFrame:
        """Return the valid rows of the manifest."""
        return self.split.manifest.table.filter(pl.Series(self.split.valid))

    def manifest(self) -> Manifest:
        """Return the manifest of these rows."""
        return replace(self.split.manifest, table=self.valid()[self.rows])


@dataclass(frozen=True, slots=True, eq=False)
class TrunkCache:
    """Stores activations of one trunk."""

    storage: Storage
    trunk: Trunk
    batch_size: int = 64
    """Images per forward pass of the trunk."""

    def plan(self, part: Part) -> Plan:
        """Return the plan of the stored activations of a part."""
        shape, manifest = self.trunk.shape, part.manifest()
        row_bytes = 2 * math.prod(shape)
        batches = max(1, SHARD_BYTES // (row_bytes * self.batch_size))
        fingerprint = part.split.fingerprint.of_activations(
            manifest.digest, cut=self.trunk.cut.blocks[0], dtype="float16"
        )
        return Plan(
            dataset=manifest.dataset,
            split=manifest.split,
            num_rows=len(manifest.table),
            dim=math.prod(shape),
            shape=shape,
            dtype="float16",
            shard_rows=batches * self.batch_size,
            batch_size=self.batch_size,
            fingerprint=fingerprint,
            device=self.trunk.config.device.split(":")[0],
        )

    def path(self, plan: Plan) -> Path:
        """Return the folder of a part."""
        name = re.sub(r"[^\w.-]", "-", plan.dataset)  # the manifest's text must not become a path
        identifier = replace(plan, compiled=False).identifier  # equal for compiled and other runs
        return self.storage.folder / f"{name}-{plan.split}-{identifier[:16]}"

    def bytes(self, part: Part) -> int:
        """Return the size of a part in float16."""
        return 2 * len(part.rows) * math.prod(self.trunk.shape)

    def chosen(self, parts: Sequence[Part]) -> list[bool]:
        """Return which parts are stored: in order, each part that still fits into the budget."""
        left, chosen = self.storage.budget, []
        for part in parts:
            size = self.bytes(part)
            chosen.append(0 < size <= left)
            left -= size if chosen[-1] else 0
        return chosen

    def store(self, part: Part, observe: Observer) -> ActivationRows:
        """Compute the missing shards of a part, and open it.

        A complete part is only read, so that it may be on a read-only disk, and any number of runs
        can open it at once.

        Raises:
            ClinitError: If an image has become unreadable or the storage fails.
        """

        def busy() -> None:
            observe(Noted(f"Another process computes the activations of {part.name}: waiting"))

        plan = self.plan(part)
        folder = self.path(plan)
        try:
            return self._open(part, folder)
        except CacheError:  # not begun, not finished, or damaged
            pass
        self.from_images(part)  # only to check that the images give the stored features
        with claim_folder(folder, on_busy=busy), whole_images():
            pixels, workers = self.storage.max_pixels, self.storage.workers
            run = SplitRun(
                plan=plan,
                manifest=part.manifest(),
                root=part.root,
                folder=folder,
                backbone=self.trunk,
                transform=self.trunk.transform,
                settings=Settings(workers=workers, strict=True, max_pixels=pixels),
                named=NamedHead(),
                on_progress=lambda now: observe(
                    Progressed(f"images of {part.name}", now.rows_done, now.rows_total)
                ),
            )
            # A part that was begun continues as it was begun, compiled or not.
            (run,) = compiled_alike([run], lambda note: observe(Noted(note)))
            run.run()
        return self._open(part, folder)

    def _open(self, part: Part, folder: Path) -> ActivationRows:
        split = open_split(folder)
        if invalid := split.num_rows - split.num_valid:
            raise CacheError(
                f"{invalid:,} images of {part.root} give activations that are not finite",
                remedy="Check the weights of the backbone.",
            )
        position = np.full(part.split.num_valid, -1, dtype=np.int64)
        position[part.rows] = np.arange(len(part.rows))
        fits = self.bytes(part) <= MEMORY_SHARE * free_memory()
        pin_memory = self.trunk.config.device.startswith("cuda")
        return StoredRows(split, position, in_memory=fits, pin_memory=pin_memory)

    def from_images(self, part: Part) -> ActivationRows:
        """Return the rows of a part, which are computed each time they are read.

        Raises:
            CacheError: If the images differ from the images of the features.
            ImageError: If an image has become unreadable.
        """
        rows = ImageRows(part.valid(), part.root, self.trunk, self.storage)
        check_images(part, rows, self.trunk.cut.top)
        return rows


SAMPLE_ROWS = 8
TOLERANCE = 0.1
"""Largest error, as a share of the length of a feature. Mixed precision costs about 0.01, a
different image about 1."""


@torch.no_grad()
def check_images(part: Part, images: ActivationRows, top: Callable[[Tensor], Tensor]) -> None:
    """Check for some rows of a part that their images give the stored features.

    Args:
        part: The rows to choose from, and their features.
        images: Activations, computed from the images.
        top: Activations to features, on the device of the activations.

    Raises:
        CacheError: If a feature differs from the stored feature.
    """
    if not len(part.rows):
        return
    places = np.linspace(0, len(part.rows) - 1, min(SAMPLE_ROWS, len(part.rows)))
    chosen = part.rows[places.astype(np.int64)]
    with closing(images.stream([chosen])) as stream:
        found = top(next(stream).float()).float().cpu().numpy()
    stored = part.features[chosen].astype(np.float32)
    lengths = np.linalg.norm(stored, axis=1)
    error = np.linalg.norm(found - stored, axis=1) / np.maximum(lengths, lengths.mean())
    if not (error <= TOLERANCE).all():
        raise CacheError(
            f"the images of {part.name} give features that differ from those in the cache by"
            f" {np.nanmax(error):.0%} of their length",
            remedy="Give the folders of the extracted images with --base-root and --new-root,"
            " or extract the new images into a new cache.",
        )

"""The cache of activations: computed once, in the format of a feature cache, with more axes.

Everything below the first plastic block is frozen and nothing is augmented, so its output for an
image never changes. A split of a feature cache gives a part here: those of its rows that the
runs look at, in a folder named by the digest of its plan, so that runs with the same rows, network
and cut share it whatever else they do.

Before activations are computed, a few images go through the whole network, and must give the stored
features: rows are matched by their paths, and a folder of other images may have the same ones.
"""

from __future__ import annotations

import math
import os
import re
import shutil
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from clinit.errors import CacheError
from clinit.extract.cache.plan import Plan
from clinit.extract.cache.read import CacheSplit, open_split
from clinit.extract.dataset.known import MAX_PIXELS
from clinit.extract.dataset.manifest import Manifest
from clinit.extract.head_names import HeadNames
from clinit.extract.work.settings import Settings
from clinit.extract.work.split_run import Progress, ShardWork, SplitRun
from clinit.files.lock import claim_folder
from clinit.headtrain.top.activations import (
    ActivationRows,
    ImageRows,
    StoredRows,
    Trunk,
    whole_images,
)
from clinit.machine import free_memory

SHARD_BYTES = 2**27
"""Size of a shard: what a killed run loses at most."""
MEMORY_SHARE = 0.4
"""Share of the free memory that stored activations may take; larger ones stay in their files."""


@dataclass(frozen=True, slots=True, eq=False)
class Part:
    """Rows of one split of a feature cache that a run looks at."""

    name: str
    """Name for messages, such as `base train`."""
    split: CacheSplit
    root: Path
    """The folder of its images."""
    rows: Int[np.ndarray, " rows"]
    """Indices among the valid rows of the split; sorted, each once."""
    features: Float[np.ndarray, "valid dim"]
    """Features of all valid rows, as the split holds them."""

    @property
    def manifest_rows(self) -> Int[np.ndarray, " valid"]:
        """Row of the manifest for each valid row of the split."""
        return np.flatnonzero(self.split.valid)

    def manifest(self) -> Manifest:
        """Return the manifest of the rows alone."""
        table = self.split.manifest.table[self.manifest_rows[self.rows]]
        return replace(self.split.manifest, table=table)


@dataclass(frozen=True, slots=True, eq=False)
class StoredActivations:
    """The activations of a part on the disk, and what they cost."""

    rows: ActivationRows
    seconds: float | None
    """Time to compute all of them, at the rate of the computation that completed them; None where
    the cache does not say."""
    computed_here: bool
    """Whether this call has computed any of them; otherwise all were there."""


@dataclass(frozen=True, slots=True, eq=False)
class TrunkCache:
    """Where activations are stored, and how many bytes they may take."""

    folder: Path
    trunk: Trunk
    budget: int
    """Bytes; parts that do not fit are computed from their images each time."""
    workers: int
    batch_size: int = 64
    """Images per forward pass of the trunk."""
    max_pixels: int = MAX_PIXELS
    """Largest image that is decoded."""

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
        name = re.sub(r"[^\w.-]", "-", plan.dataset)  # whatever the manifest says: no path
        return self.folder / f"{name}-{plan.split}-{plan.identifier[:16]}"

    def bytes(self, part: Part) -> int:
        """Return the size of a part in float16."""
        return 2 * len(part.rows) * math.prod(self.trunk.shape)

    def chosen(self, parts: Sequence[Part]) -> list[bool]:
        """Return which parts are stored: from the first on, those that still fit into the budget.

        Raises:
            CacheError: If the folder cannot be written, or its disk does not hold what is chosen
                and not there yet.
        """
        left, chosen, missing = self.budget, [], 0
        for part in parts:
            size = self.bytes(part)
            chosen.append(0 < size <= left)
            if chosen[-1]:
                left -= size
                missing += self._missing(part)
        if missing:
            self._check_room(missing)
        return chosen

    def _missing(self, part: Part) -> int:
        """Return the bytes that a part still lacks; an earlier run may have been killed."""
        folder = self.path(self.plan(part))
        if (folder / "cache.json").is_file():
            return 0
        there = sum(path.stat().st_size for path in folder.glob("shard-*.h5"))
        return max(0, self.bytes(part) - there)

    def _check_room(self, size: int) -> None:
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            free = shutil.disk_usage(self.folder).free
            problem = None if os.access(self.folder, os.W_OK | os.X_OK) else "Permission denied"
        except OSError as error:
            free, problem = 0, error.strerror
        if problem is None and size > free:
            problem = f"{free / 1e9:,.2f} GB are free there"
        if problem is not None:
            raise CacheError(
                f"cannot store activations of {size / 1e9:,.2f} GB in {self.folder}: {problem}",
                remedy="Give another folder with --trunk-cache, less with --trunk-budget, or"
                " compute them from the images each time with --no-trunk-cache.",
            )

    def store(
        self,
        part: Part,
        *,
        on_progress: Callable[[Progress], None],
        on_busy: Callable[[], None],
    ) -> StoredActivations:
        """Compute what is missing of a part, and open it.

        What is complete is only read, so it may be on a disk that cannot be written, and any
        number of runs can open it at once.

        Args:
            part: The rows.
            on_progress: Told how far the computation is.
            on_busy: Called before waiting for another process that computes the same part.

        Raises:
            ClinitError: If an image has become unreadable or the storage fails.
        """
        plan = self.plan(part)
        folder = self.path(plan)
        try:
            return self._open(part, folder, computed_here=False)
        except CacheError:  # not begun, not finished, or damaged
            pass
        self.from_images(part)  # checks them
        with claim_folder(folder, within=self.folder, on_busy=on_busy), whole_images():
            work = ShardWork(
                plan=plan,
                manifest=part.manifest(),
                root=part.root,
                folder=folder,
                backbone=self.trunk,
                transform=self.trunk.transform,
                settings=Settings(workers=self.workers, strict=True, max_pixels=self.max_pixels),
            )
            result = SplitRun(
                work=work,
                head=None,
                head_names=HeadNames(),
                on_progress=on_progress,
            ).run()
        # None of them, if the process that was waited for has computed all.
        return self._open(part, folder, computed_here=result.computed_rows > 0)

    def _open(self, part: Part, folder: Path, *, computed_here: bool) -> StoredActivations:
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
        rows = StoredRows(split, position, in_memory=fits, pin_memory=pin_memory)
        return StoredActivations(rows, _seconds(split), computed_here)

    def from_images(self, part: Part) -> ActivationRows:
        """Return the rows of a part, computed each time they are asked for.

        Raises:
            CacheError: If the images differ from those of the features.
            ImageError: If one cannot be read any more.
        """
        images = part.split.manifest.table[part.manifest_rows]
        rows = ImageRows(
            images,
            part.root,
            self.trunk,
            workers=self.workers,
            max_pixels=self.max_pixels,
        )
        check_images(part.name, rows, part.rows, part.features, self.trunk.cut.top)
        return rows


def _seconds(split: CacheSplit) -> float | None:
    """Return the time to compute all rows; a killed computation has left some to the next one."""
    rate = split.summary.run.images_per_s
    return split.num_rows / rate if rate else None


SAMPLE_ROWS = 8
TOLERANCE = 0.1
"""Largest error, as a share of the length of a feature. Mixed precision costs about 0.01, a
different image about 1."""


@torch.no_grad()
def check_images(
    name: str,
    images: ActivationRows,
    rows: Int[np.ndarray, " rows"],
    features: Float[np.ndarray, "valid dim"],
    top: Callable[[Tensor], Tensor],
) -> None:
    """Check on some rows that their images give the features that are stored.

    Args:
        name: Name of the part, for the message.
        images: Activations, computed from the images.
        rows: Rows to choose from.
        features: Stored features of all rows of `images`.
        top: Activations to features, on the device of the activations.

    Raises:
        CacheError: If one of the features differs from the stored one.
    """
    places = np.linspace(0, len(rows) - 1, min(SAMPLE_ROWS, len(rows))).astype(np.int64)
    chosen = rows[places]
    if not len(chosen):
        return
    with closing(images.stream([chosen])) as stream:
        found = top(next(stream).float()).float().cpu().numpy()
    stored = features[chosen].astype(np.float32)
    lengths = np.linalg.norm(stored, axis=1)
    error = np.linalg.norm(found - stored, axis=1) / np.maximum(lengths, lengths.mean())
    if not (error <= TOLERANCE).all():
        raise CacheError(
            f"the images of {name} give features that differ from those in the cache by"
            f" {np.nanmax(error):.0%} of their length",
            remedy="Say with --base-root and --new-root where the extracted images are,"
            " or extract these into a new cache.",
        )

"""Extract a sample of rows again and compare it with what a cache holds.

Digests say that the bytes are those that were written; they do not say that the right images, in
the right order, went through the right network. Here that is measured.

The difference of a row is max |a - b| / max |b| over its features, a computed now, b stored. It
is not zero where all is well: features are rounded when they are stored (float16: 2^-11 of a
number), and sums of a forward pass are rounded in another order in a batch of another size, on
another device or with other threads.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float, Int

from clinit.errors import CacheError
from clinit.extract.cache.read import CacheSplit
from clinit.extract.cache.shard import Shard
from clinit.extract.dataset.images import images_of
from clinit.extract.dataset.known import MAX_PIXELS
from clinit.extract.views import View
from clinit.extract.work.pipeline import ImageBatch, load_batches
from clinit.extract.work.run import Network

STORAGE = {"float16": 2.0**-11, "float32": 0.0}
"""Largest relative error of rounding to the type of the features."""
ARITHMETIC = {"off": 2.0**-9, "float16": 2.0**-6, "bfloat16": 2.0**-3}
"""What another order of summation may change, by autocast. A float32 convolution or matrix product
on a GPU may round its factors to TensorFloat-32, of 11 bits like float16."""


@dataclass(frozen=True, slots=True)
class Rechecked:
    """A sample of one split or view."""

    title: str
    num_rows: int
    largest: float
    """Largest difference of a row, relative to its largest feature; 0 or more."""
    path: str
    """The image of that row."""
    row: int
    tolerance: float
    unreadable: tuple[str, ...]
    """Images that cannot be read now, each with its reason."""

    @property
    def is_same(self) -> bool:
        """Whether all rows could be computed and none differs more than it may."""
        return not self.unreadable and self.largest <= self.tolerance


def tolerance(split: CacheSplit, autocast: str) -> float:
    """Return the largest difference of a row that says nothing: rounding, and order of sums."""
    return STORAGE[split.plan.dtype] + ARITHMETIC[autocast]


def sample_rows(split: CacheSplit, size: int, seed: int) -> Int[np.ndarray, " sample"]:
    """Return rows that hold features, drawn without replacement, in order."""
    rows = np.flatnonzero(split.valid)
    drawn = np.random.default_rng(seed).choice(rows, size=min(size, len(rows)), replace=False)
    sample: np.ndarray = np.sort(drawn)
    return sample


def recheck(
    split: CacheSplit,
    network: Network,
    root: Path,
    rows: Int[np.ndarray, " sample"],
    *,
    workers: int,
    on_rows: Callable[[str, int, int], None] = lambda title, done, total: None,
) -> Rechecked:
    """Extract rows of a split or view again and compare them with what is stored.

    Args:
        split: The split or view.
        network: The network that its fingerprint names.
        root: The folder of the images.
        rows: At least one, all of them valid, in order.
        workers: Threads that read and decode.
        on_rows: Called with the title, the rows done and their number.

    Raises:
        CacheError: If a shard is damaged, or the view is of no kind known here.
        ClinitError: If the machine fails, or an image has another size than in the manifest.
    """
    stored = _StoredRows(split)
    largest, worst, done = -1.0, int(rows[0]), 0
    unreadable: list[str] = []
    paths = split.manifest.table["path"]
    for batch, features in _computed(split, network, root, rows, workers):
        unreadable += [f"{paths[row]}: {why}" for row, why in batch.reasons.items()]
        for row, found in zip(batch.rows, features, strict=True):
            if row in batch.reasons:
                continue
            difference = _difference(found, stored.row(row))
            if difference > largest:
                largest, worst = difference, row
        done += len(batch.rows)
        on_rows(split.plan.title, done, len(rows))
    return Rechecked(
        title=split.plan.title,
        num_rows=len(rows),
        largest=max(largest, 0.0),
        path=paths[worst],
        row=worst,
        tolerance=tolerance(split, network.backbone.config.autocast),
        unreadable=tuple(unreadable),
    )


def _difference(found: Float[np.ndarray, " dim"], stored: Float[np.ndarray, " dim"]) -> float:
    scale = np.abs(stored).max()
    difference = np.abs(found - stored).max()
    relative = float(difference / scale) if scale > 0 else float(difference)
    return math.inf if math.isnan(relative) else relative


@dataclass(slots=True, eq=False)
class _StoredRows:
    """Stored features; the last shard is in memory, for rows are asked for in order."""

    split: CacheSplit
    _last: tuple[int, Shard] | None = None

    def row(self, row: int) -> Float[np.ndarray, " dim"]:
        """Return the features of a row, in float32."""
        index, inside = divmod(row, self.split.plan.shard_rows)
        if self._last is None or self._last[0] != index:
            self._last = index, self.split.shard(index)
        features: np.ndarray = self._last[1].features[inside].astype(np.float32)
        return features


def _computed(
    split: CacheSplit,
    network: Network,
    root: Path,
    rows: Int[np.ndarray, " sample"],
    workers: int,
) -> Iterator[tuple[ImageBatch, Float[np.ndarray, "batch dim"]]]:
    """Yield batches of rows with the features of all of them."""
    config = network.backbone.config
    normalise = network.transform.normaliser(torch.device(config.device))
    size, numbers = split.plan.batch_size, rows.tolist()
    batches = load_batches(
        images_of(split.manifest.table, root),
        [numbers[start : start + size] for start in range(0, len(numbers), size)],
        network.transform,
        workers=workers,
        max_pixels=split.summary.run.max_pixels or MAX_PIXELS,
        view=_view(split, network),
    )
    with closing(batches):
        for batch in batches:
            pixels = batch.pixels.to(config.device)
            yield batch, network.backbone.features(normalise(pixels)).cpu().numpy()


def _view(split: CacheSplit, network: Network) -> View | None:
    told = split.fingerprint
    if told.view is None:
        return None
    view = View.of(network.transform, seed=int(told.view_seed or 0), number=int(told.view))
    if view.describe() != told.augmentation:
        raise CacheError(
            f"{split.path} holds views with augmentation = {told.augmentation}, here it is"
            f" {view.describe()}",
            remedy="Extract the views again into a new folder, with `clinit extract --views`.",
        )
    return view

"""Activations in front of the first plastic block, by row: stored, or computed from the images.

(A *plastic* block is a block that is trained.) Both kinds round to float16 in the same way, see
`Trunk.of_pixels`. They are equal up to the last bits, because some kernels sum in another order in
a small batch, or if threads share a batch.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import polars as pl
import torch
from jaxtyping import Float, Int, UInt8
from torch import Tensor

from clinit.errors import ImageError
from clinit.extract.cache.read import CacheSplit, stored_features
from clinit.extract.dataset.images import images_of
from clinit.extract.network.backbone import BackboneConfig
from clinit.extract.network.compiled import Forward
from clinit.extract.network.transform import Transform
from clinit.extract.work.pipeline import Decoder
from clinit.headtrain.heads.array import slices
from clinit.headtrain.protocol.stream.buffer import Pool
from clinit.headtrain.top.images import Storage
from clinit.headtrain.top.network import Cut

FLOAT16 = torch.finfo(torch.float16)


@dataclass(frozen=True, eq=False)
class Trunk:
    """The frozen part of a network: from images to activations before the first plastic block."""

    config: BackboneConfig
    cut: Cut
    transform: Transform
    program: Forward | None = None
    """`forward`, compiled for batches of one size; None: compute layer by layer."""

    @torch.no_grad()
    def features(self, batch: Float[Tensor, "batch 3 height width"]) -> Float[Tensor, "batch ..."]:
        """Return the activations of normalised images, in float32."""
        with self.config.float32():
            return (self.program or self.forward)(batch)

    def forward(self, batch: Float[Tensor, "batch 3 height width"]) -> Float[Tensor, "batch ..."]:
        """Compute the activations layer by layer; this function is compiled into `program`."""
        with self.config.arithmetic():
            activations = self.cut.trunk(batch)
        return activations.float()

    def of_pixels(self, pixels: UInt8[Tensor, "batch 3 _ _"]) -> Float[Tensor, "batch ..."]:
        """Return the activations of decoded images as if they had been stored in a cache.

        They are rounded to float16, unless this would overflow or round an image to zeros
        (`fit_float16`). Storing activations then changes last bits only.
        """
        there = pixels.to(self.config.device, non_blocking=True)
        activations = self.features(self.transform.normalise(there))
        return activations.half() if _fits_float16(activations) else activations

    @cached_property
    def shape(self) -> tuple[int, ...]:
        """Shape of one image's activations."""
        pixels = torch.zeros((1, 3, *self.transform.crop), dtype=torch.uint8)
        return tuple(self.of_pixels(pixels).shape[1:])


def _fits_float16(activations: Float[Tensor, "batch ..."]) -> bool:
    """Return whether float16 can represent the activations, as `features.fit_float16`."""
    largest = activations.abs().flatten(1).amax(dim=1)
    small = activations[largest < FLOAT16.smallest_normal]
    return bool((largest < FLOAT16.max).all()) and torch.equal(small.half().float(), small)


Index = Int[np.ndarray, " _"]  # no name: batches of one call differ in length


class StoredActivations:
    """Rows of a trunk cache, held in memory or read row by row from its verified shards."""

    def __init__(self, split: CacheSplit, position: Index, *, in_memory: bool) -> None:
        """Read or verify all shards.

        Args:
            split: The stored activations.
            position: The row of `split` for each row of the feature cache, -1 for no row.
            in_memory: Keep the activations in memory.

        Raises:
            CacheError: If a shard is missing or damaged, or belongs to another plan.
        """
        self._shape = split.plan.shape or (split.dim,)
        self._position = position
        self._rows = (split.load() if in_memory else stored_features(split)).features

    def __len__(self) -> int:
        return len(self._position)

    def stream(self, batches: Sequence[Index]) -> Generator[Float[Tensor, "batch ..."]]:
        """Yield the activations of batches of rows, as stored."""
        for rows in batches:
            values = self._rows[self._position[rows]].reshape(len(rows), *self._shape)
            yield torch.from_numpy(values)


@contextmanager
def whole_images() -> Iterator[None]:
    """Add a remedy to the error of an unreadable image."""
    try:
        yield
    except ImageError as error:
        raise ImageError(
            str(error),
            remedy="Its features were extracted from a whole image: restore it, give the"
            " --max-pixels of the extraction, or the folders of the images with --base-root and"
            " --new-root.",
        ) from error


class ImageRows:
    """Rows that are computed from their images each time they are read."""

    def __init__(self, table: pl.DataFrame, root: Path, trunk: Trunk, storage: Storage) -> None:
        self._table = table
        self._root = root
        self._trunk = trunk
        self._storage = storage

    def __len__(self) -> int:
        return len(self._table)

    def stream(self, batches: Sequence[Index]) -> Generator[Float[Tensor, "batch ..."]]:
        """Yield the activations of batches of rows; images are decoded ahead.

        Raises:
            ImageError: If an image has become unreadable.
            ManifestError: If a file differs from the manifest.
        """
        wanted = self._table[[row for rows in batches for row in rows.tolist()]]
        images = images_of(wanted, self._root)
        ends = np.cumsum([len(rows) for rows in batches]).tolist()
        ranges = [range(end - len(rows), end) for rows, end in zip(batches, ends, strict=True)]
        decoder = Decoder(
            images=images,
            transform=self._trunk.transform,
            workers=self._storage.workers,
            max_pixels=self._storage.max_pixels,
            pin_memory=self._trunk.config.device.startswith("cuda"),
        )
        with closing(decoder.batches(ranges)) as loaded, whole_images():
            for batch in loaded:
                for row, reason in batch.reasons.items():
                    raise ImageError(f"{images.place(row)}: {reason}", remedy="")
                yield self._trunk.of_pixels(batch.pixels)


ActivationRows = StoredActivations | ImageRows
"""The activations of the valid rows of one split of a feature cache."""


class PoolActivations:
    """The rows of several splits under the index of a `Pool`."""

    def __init__(self, parts: Sequence[ActivationRows], device: torch.device) -> None:
        self._parts = list(parts)
        self._starts = np.cumsum([0, *map(len, parts)])
        self.device = device

    def stream(self, batches: Sequence[Index]) -> Generator[Float[Tensor, "batch ..."]]:
        """Yield the activations of batches of pool rows, in float32 on the device."""
        parts = [np.searchsorted(self._starts, rows, side="right") - 1 for rows in batches]
        with ExitStack() as stack:
            streams = []
            for index, part in enumerate(self._parts):
                own = [
                    rows[part_of == index] - self._starts[index]
                    for rows, part_of in zip(batches, parts, strict=True)
                    if index in part_of  # some networks cannot compute an empty batch
                ]
                streams.append(stack.enter_context(closing(part.stream(own))))
            for part_of in parts:
                blocks = {index: next(streams[index]) for index in np.unique(part_of).tolist()}
                yield self._merged(part_of, blocks)

    def _merged(self, part_of: Index, blocks: Mapping[int, Tensor]) -> Float[Tensor, "batch ..."]:
        first, *others = blocks.values()
        if not others:
            return self._input(first)
        merged = torch.empty((len(part_of), *first.shape[1:]), device=self.device)
        for index, block in blocks.items():
            here = sent(torch.from_numpy(np.flatnonzero(part_of == index)), self.device)
            merged[here] = sent(block, self.device).float()
        return self._input(merged)

    def _input(self, values: Float[Tensor, "batch ..."]) -> Float[Tensor, "batch ..."]:
        """Return float32 on the device; maps have the channels last, like the weights."""
        layout = torch.channels_last if values.ndim == 4 else torch.contiguous_format
        # First copied, then widened: the other order would send twice the bytes.
        return sent(values, self.device).to(torch.float32, memory_format=layout)


def cut(rows: Index, size: int) -> list[Index]:
    """Return the rows, `size` at a time; the last part may be smaller."""
    return [rows[part] for part in slices(len(rows), size)]


@dataclass(frozen=True, slots=True, eq=False)
class ActivationBatch:
    """Rows in front of the first plastic block, new rows first."""

    activations: Float[Tensor, " batch *shape"]
    """Output of the frozen trunk, float32, on the device of the model."""
    labels: Int[Tensor, " batch"]
    """Class of each row, as the number of a head row; on the device of the model."""
    rows: Int[np.ndarray, " batch"]
    """Pool row of each image."""
    num_new: int
    """Number of rows of the task's own classes."""

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def num_old(self) -> int:
        """Number of rows of earlier classes."""
        return len(self) - self.num_new

    def old(self) -> ActivationBatch:
        """Return the rows of earlier classes."""
        part = slice(self.num_new, None)
        return ActivationBatch(self.activations[part], self.labels[part], self.rows[part], 0)


@dataclass(eq=False)
class TaskReader:
    """The rows of one task, as batches."""

    pool: Pool
    activations: PoolActivations
    new: Int[np.ndarray, " new"]
    """Pool rows of the task's classes."""
    old: Int[np.ndarray, " old"]
    """Pool rows of earlier classes that the method's batches read.

    In the first task, also the `base_sample` of the method, for `begin`, which no batch reads.
    """

    def batches(self, rows: Int[np.ndarray, " rows"], size: int) -> Generator[ActivationBatch]:
        """Yield `rows` in order, `size` at a time; the last batch may be smaller.

        `num_new` of these batches has no meaning.
        """
        parts = cut(rows, size)
        return self.stream(parts, [0] * len(parts))

    def stream(
        self, batches: Sequence[Index], num_new: Sequence[int]
    ) -> Generator[ActivationBatch]:
        """Yield the given batches, the first `num_new` of each being new rows."""
        with closing(self.activations.stream(batches)) as streamed:
            for rows, new, activations in zip(batches, num_new, streamed, strict=True):
                labels = sent(torch.from_numpy(self.pool.labels[rows]), self.activations.device)
                yield ActivationBatch(activations, labels, rows, int(new))


def sent(values: Tensor, device: torch.device) -> Tensor:
    """Copy values to a device, without waiting for a CUDA device.

    Only copies from pinned memory are asynchronous; copies from other memory may wait for all work
    that is queued on the device. Torch keeps pinned memory until its copies are done.
    """
    if device.type == "cuda" and values.device.type == "cpu" and not values.is_pinned():
        values = values.pin_memory()
    return values.to(device, non_blocking=True)

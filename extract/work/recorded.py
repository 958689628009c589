"""The images, the network and the transform behind a feature cache, as it records them.

The fingerprint contains which they were; only the weights themselves are elsewhere. Whatever file
they come from, they count only if their hash is the one in the fingerprint.

Digests show that the bytes are those that were written, not that the right images, in the right
order, went through the right network. `recheck` measures that: it extracts a sample of rows again.
The difference of a row is max |a - b| / max |b| over its features, a computed now, b stored. It is
never quite zero: features are rounded when they are stored (float16: 2^-11 of a number), and sums
of a forward pass are rounded in another order in a batch of another size, on another device or with
other threads.
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

from clinit.errors import BackboneError, CacheError
from clinit.extract.cache.fingerprint import Fingerprint
from clinit.extract.cache.read import CacheSplit
from clinit.extract.dataset.images import images_of
from clinit.extract.dataset.known import MAX_PIXELS
from clinit.extract.network.backbone import Backbone, BackboneConfig, load_backbone, read_model_args
from clinit.extract.network.transform import Transform
from clinit.extract.views import View
from clinit.extract.work.pipeline import ImageBatch, load_batches
from clinit.extract.work.run import Network
from clinit.machine import choose_device, cpu_count
from clinit.words import contrast_digests

STORAGE = {"float16": 2.0**-11, "float32": 0.0}
"""Largest relative error of rounding to the type of the features."""
ARITHMETIC = {"off": 2.0**-9, "float16": 2.0**-6, "bfloat16": 2.0**-3}
"""Largest change by another order of summation, by autocast. A float32 convolution or matrix
product on a GPU may round its factors to TensorFloat-32, of 11 bits like float16."""
_RIGHT_FILE = (
    "Give the file of the weights that the features were extracted with: `--weights FILE`."
)


def reload(
    split: CacheSplit, *, weights: Path | None = None, device: str = "cpu"
) -> tuple[Backbone, Transform]:
    """Return the backbone that computed the features of a split, and what its images went through.

    Args:
        split: A split of a cache.
        weights: The file of the weights; default: its place at extraction, or timm's
            pretrained weights if no file was given then.
        device: `auto`, `cpu`, `cuda` or `cuda:<index>`.

    Raises:
        CacheError: If no network of ours computed the features, its weights are no longer in their
            place, or these are other weights.
        BackboneError: If the weights cannot be had or do not fit the network.
        DeviceError: If the device is absent.
    """
    found = weights if weights is not None else stored_weights(split)
    return rebuild(split.fingerprint, found, origin=str(split.path), device=device)


def rebuild(
    fingerprint: Fingerprint, weights: Path | None, *, origin: str, device: str = "cpu"
) -> tuple[Backbone, Transform]:
    """Return the backbone and the transform of a fingerprint; see `reload`.

    Args:
        fingerprint: Fingerprint of a cache, or of a run record.
        weights: The file of the weights; None takes timm's pretrained weights.
        origin: The file that contains the fingerprint, for messages.
        device: As in `reload`.
    """
    fields, expected = fingerprint.fields, _extracted_weights(fingerprint, origin)
    try:
        transform = Transform.parse(fields["transform"])
        config = BackboneConfig(
            name=fields["backbone"],
            weights=weights,
            model_args=read_model_args(fields["model_args"]),
            device=str(choose_device(device)),
            autocast=fields.get("autocast", "off"),
            output=fields.get("output", "pooled"),
        )
    except (ValueError, KeyError, TypeError) as error:
        raise CacheError(
            f"the fingerprint of {origin} does not describe a network and a transform: {error}",
            remedy="Run the `clinit extract` command of the cache into a new folder.",
        ) from error
    try:
        backbone = load_backbone(config)
    except BackboneError as error:
        if weights is None:
            raise
        raise BackboneError(str(error), remedy=_RIGHT_FILE) from error
    if backbone.weights_sha256 != expected:
        found = f"timm's pretrained weights of {config.name}" if weights is None else str(weights)
        now, then = contrast_digests(backbone.weights_sha256, expected)
        raise CacheError(
            f"{found}: SHA-256 {now}, but the features of {origin} were extracted with weights of"
            f" SHA-256 {then}",
            remedy=_RIGHT_FILE,
        )
    return backbone, transform


def stored_weights(split: CacheSplit) -> Path | None:
    """Return the place of the weights at extraction; None for timm's own.

    Raises:
        CacheError: If nobody knows, or the file is gone.
    """
    _extracted_weights(split.fingerprint, str(split.path))
    found = split.summary.run.weights
    if found is None:
        return None
    if not (isinstance(found, str) and Path(found).is_file()):
        where = f"at {found}" if isinstance(found, str) else "in a place that it does not record"
        raise CacheError(
            f"the weights of the features in {split.path} are missing: they were {where}",
            remedy="Give them with `--weights FILE`, or run the `clinit extract` command of this"
            " cache again: it records the path and computes nothing.",
        )
    return Path(found)


def _extracted_weights(fingerprint: Fingerprint, origin: str) -> str:
    """Return the digest of the weights of the network that computed the features."""
    if fingerprint.weights is None:
        raise CacheError(
            f"no network is known for the features of {origin}: they were imported from"
            f" {'elsewhere' if fingerprint.backbone is None else fingerprint.backbone!r}",
            remedy="Extract the images with `clinit extract` to have the network too.",
        )
    return str(fingerprint.weights)


def rebuild_network(split: CacheSplit, weights: Path | None, device: str) -> Network:
    """Return the network of a split, and the fingerprint of what it computes here and now.

    Raises:
        CacheError: As `reload`, or if a library has another version.
        ClinitError: If the backbone does not serve.
    """
    backbone, transform = reload(split, weights=weights, device=device)
    on_device = _is_decoded_on_device(split) and backbone.config.device.startswith("cuda")
    decoder = "cuda" if on_device else "cpu"
    network = Network.of(backbone, transform, split.plan.dtype, decoder)
    for each in split.fingerprint.without_rows.differences(network.fingerprint):
        raise CacheError(
            f"the features of {split.path} were computed with {each.name} = {each.one}, here it is"
            f" {each.other}: the result would differ",
            remedy="Install that version, or run the `clinit extract` command of this cache into a"
            " new folder.",
        )
    return network


def _is_decoded_on_device(split: CacheSplit) -> bool:
    return split.fingerprint.fields.get("decoder", "").startswith("nvjpeg")


def images_root(split: CacheSplit, given: Path | None) -> Path:
    """Return the folder of the images of a split: the given one, or its place at extraction.

    Raises:
        CacheError: If there is none.
    """
    found = str(given) if given is not None else split.summary.run.root
    # Earlier versions recorded it as seen from a working folder that nobody knows any more.
    if found is None or not Path(found).is_dir() or not (given or Path(found).is_absolute()):
        raise CacheError(
            f"the images of {split.path} are not in {found or 'any folder that it records'}",
            remedy="Give the folder of the images: `--root DIR`.",
        )
    return Path(found)


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
        """Whether all rows could be computed and none differs by more than the tolerance."""
        return not self.unreadable and self.largest <= self.tolerance


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
    workers: int | None = None,
    on_rows: Callable[[str, int, int], None] = lambda title, done, total: None,
) -> Rechecked:
    """Extract rows of a split or view again and compare them with the stored ones.

    Args:
        split: The split or view.
        network: The network that its fingerprint names.
        root: The folder of the images.
        rows: At least one, all of them valid, in order.
        workers: Threads that read and decode; None for one on each usable CPU.
        on_rows: Called with the title, the number of finished rows, and the number of all.

    Raises:
        CacheError: If a shard is damaged.
        ClinitError: If the machine fails, or an image has another size than in the manifest.
    """
    stored = _stored_rows(split, rows)
    largest, worst, done = -1.0, int(rows[0]), 0
    unreadable: list[str] = []
    paths = split.manifest.table["path"]
    for batch, features in _computed(split, network, root, rows, workers or cpu_count()):
        unreadable += [f"{paths[row]}: {why}" for row, why in batch.reasons.items()]
        for row, found, expected in zip(batch.rows, features, stored, strict=False):
            difference = _difference(found, expected)
            if row not in batch.reasons and difference > largest:
                largest, worst = difference, row
        done += len(batch.rows)
        on_rows(split.plan.title, done, len(rows))
    return Rechecked(
        title=split.plan.title,
        num_rows=len(rows),
        largest=max(largest, 0.0),
        path=paths[worst],
        row=worst,
        tolerance=STORAGE[split.plan.dtype] + ARITHMETIC[network.backbone.config.autocast],
        unreadable=tuple(unreadable),
    )


def _difference(found: Float[np.ndarray, " dim"], stored: Float[np.ndarray, " dim"]) -> float:
    scale = np.abs(stored).max()
    difference = np.abs(found - stored).max()
    relative = float(difference / scale) if scale > 0 else float(difference)
    return math.inf if math.isnan(relative) else relative


def _stored_rows(
    split: CacheSplit, rows: Int[np.ndarray, " sample"]
) -> Iterator[Float[np.ndarray, " dim"]]:
    """Yield the stored features of rows, in float32; each shard is read once."""
    shards = rows // split.plan.shard_rows
    for index in np.unique(shards).tolist():
        inside = rows[shards == index] - index * split.plan.shard_rows
        yield from split.shard(index).features[inside].astype(np.float32)


def _computed(
    split: CacheSplit, network: Network, root: Path, rows: Int[np.ndarray, " sample"], workers: int
) -> Iterator[tuple[ImageBatch, Float[np.ndarray, "batch dim"]]]:
    """Yield batches of rows with the features of all of them."""
    device = network.backbone.config.device
    normalise = network.transform.normaliser(torch.device(device))
    size, numbers, told = split.plan.batch_size, rows.tolist(), split.fingerprint
    view = None
    if told.view is not None:
        view = View.of(network.transform, seed=int(told.view_seed), number=int(told.view))
    batches = load_batches(
        images_of(split.manifest.table, root),
        [numbers[start : start + size] for start in range(0, len(numbers), size)],
        network.transform,
        workers=workers,
        max_pixels=split.summary.run.max_pixels or MAX_PIXELS,
        view=view,
        for_device=_is_decoded_on_device(split),
    )
    with closing(batches):
        for batch in batches:
            pixels = batch.pixels.to(device)
            if batch.finish is not None:
                batch.finish(pixels)
            features = network.backbone.features(normalise(pixels))
            yield batch, features.cpu().numpy()

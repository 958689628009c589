"""Features of the images of new classes, and those of them that are kept aside for measuring."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from clinit.errors import CacheError, ManifestError
from clinit.extract.features import FeatureSet
from clinit.extract.manifest import Manifest
from clinit.extract.progress import Progress
from clinit.extract.run import ExtractConfig, extract
from clinit.extract.scan import available_splits, scan
from clinit.headtrain.deployed.model import Model
from clinit.headtrain.examples import examples
from clinit.headtrain.stream.seeds import Draw, generator
from clinit.headtrain.stream.source import Source, read_source

LEAST_TO_MEASURE = 5
"""A class of fewer images keeps none aside."""


@dataclass(frozen=True, slots=True, eq=False)
class Measured:
    """Features to compute rows from, and others of the same classes to measure them on."""

    train: FeatureSet
    held_out: FeatureSet


def list_images(root: Path) -> dict[str, Manifest]:
    """Return the manifests of a folder of class folders, or of its `train` and `val`.

    Raises:
        ManifestError: If there is no class folder, or one of them holds no image.
    """
    splits = available_splits("folder", root) or ("train",)
    manifests = {split: scan("folder", root, split).manifest for split in splits}
    if "train" not in manifests:
        raise ManifestError(
            f"{root} holds a folder val, but no folder train",
            remedy="Give a folder of class folders, or one with train/<class>/ and val/<class>/.",
        )
    train = manifests["train"]
    empty = train.class_counts().filter(images=0)["class_name"].to_list()
    if empty:
        raise ManifestError(
            f"{len(empty):,} of {len(train.class_names):,} class folders in {root} hold no image"
            f" to learn from ({examples(empty)})",
            remedy="Put images into them, or remove them.",
        )
    return manifests


def extract_images(
    model: Model,
    manifests: dict[str, Manifest],
    root: Path,
    cache: Path,
    config: ExtractConfig,
    *,
    on_progress: Callable[[Progress], None] = lambda progress: None,
) -> Source:
    """Return the features of images as the network of `model` sees them; what is there is kept.

    Args:
        model: Whose network and transform.
        manifests: The images.
        root: Their folder.
        cache: Folder of the feature cache.
        config: Batch size, threads, type of the stored features.
        on_progress: Called after every batch.

    Raises:
        ClinitError: If the images cannot be read, or the cache is of another model or of others.
        CacheError: If no image of a class can be read.
    """
    network = model.network(config.dtype)
    for _ in extract(manifests, root, cache, config, network=network, on_progress=on_progress):
        pass
    source = read_source(cache)
    counts = source.train.counts()
    if unreadable := [source.class_names[row] for row in np.flatnonzero(counts == 0)]:
        raise CacheError(
            f"no image of {len(unreadable):,} classes in {root} can be read"
            f" ({examples(unreadable)})",
            remedy="Replace the damaged images, or remove the folders of these classes; then give"
            " the same command with `--retry-invalid`.",
        )
    return source


def digests(source: Source) -> dict[str, str]:
    """Return the digests of the manifests of the images, by split."""
    found = {"train": source.fingerprint.manifest, "val": source.val_manifest}
    return {f"{split}_manifest": digest for split, digest in found.items() if digest is not None}


def measured(source: Source, share: float) -> Measured:
    """Keep images aside: the split `val` where there is one, else a share of each class.

    At least one image of each class of five or more is kept aside, and none of smaller ones. Which
    ones depends on the name of the class and its number of images alone, not on any seed: the same
    folder keeps the same images aside each time, in whatever company it comes.

    Args:
        source: The features.
        share: Of the images of a class, in [0, 1).
    """
    if not 0 <= share < 1:
        raise ValueError(f"the share of held-out images must lie in [0, 1), got {share}")
    rows = source.train
    if len(source.val.labels) or not share:
        return Measured(rows, source.val)
    aside = np.zeros(len(rows.labels), dtype=bool)
    for label, name in enumerate(rows.class_names):
        of_class = np.flatnonzero(rows.labels == label)
        digest = int.from_bytes(hashlib.sha256(name.encode(errors="surrogateescape")).digest()[:4])
        shuffled = generator(0, Draw.ASIDE, digest).permutation(of_class)
        if len(of_class) >= LEAST_TO_MEASURE:
            aside[shuffled[: max(1, round(share * len(of_class)))]] = True
    return Measured(_picked(rows, ~aside), _picked(rows, aside))


def _picked(rows: FeatureSet, chosen: np.ndarray) -> FeatureSet:
    return FeatureSet(rows.features[chosen], rows.labels[chosen], rows.class_names)

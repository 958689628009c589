"""Rebuild network and transform of the features of a cache; name the rows of a head.

The fingerprint of the cache describes both. The weights are loaded from their own file, and used
only if their hash is the recorded one.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from clinit.errors import BackboneError, CacheError, HeadError
from clinit.extract.cache.fingerprint import Fingerprint
from clinit.extract.cache.head import Head, read_head
from clinit.extract.cache.read import HEAD_FILE, CacheSplit
from clinit.extract.cache.summary import UNKNOWN, FileFacts, NamedHead
from clinit.extract.dataset.known import read_dataset
from clinit.extract.dataset.names import HEAD_LIST, read_class_names
from clinit.extract.network.backbone import Backbone, BackboneConfig, load_backbone, read_model_args
from clinit.extract.network.transform import Transform
from clinit.files.paths import is_file
from clinit.machine import choose_device
from clinit.words import contrast_digests

_RIGHT_FILE = "Give the weights that the features were extracted with: `--weights FILE`."


def reload(
    split: CacheSplit, *, weights: Path | None = None, device: str = "cpu"
) -> tuple[Backbone, Transform]:
    """Return the backbone that computed the features of a split, and the transform of its images.

    Args:
        split: A split of a cache.
        weights: The file of the weights. None takes the weights of the extraction: the recorded
            path, or timm's pretrained weights if the extraction used them.
        device: `auto`, `cpu`, `cuda` or `cuda:<index>`.

    Raises:
        CacheError: If the features were imported, the file of the weights is missing, or it
            contains other weights.
        BackboneError: If the weights cannot be loaded or do not fit the network.
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
        weights: The file of the weights; None means timm's pretrained weights.
        origin: Path of the cache or the record with the fingerprint, for messages.
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
    """Return the recorded path of the weights; None if they are timm's pretrained weights.

    Raises:
        CacheError: If no path is recorded, or the file is missing.
    """
    _extracted_weights(split.fingerprint, str(split.path))
    found = split.summary.run.weights
    if found is None:
        return None
    if not (isinstance(found, str) and is_file(Path(found))):
        where = f"were at {found}" if isinstance(found, str) else "are at an unrecorded path"
        raise CacheError(
            f"the weights of the features in {split.path} are missing: they {where}",
            remedy="Give them with `--weights FILE`, or run the `clinit extract` command of this"
            " cache again: it records the path and computes nothing.",
        )
    return Path(found)


def _extracted_weights(fingerprint: Fingerprint, origin: str) -> str:
    if fingerprint.weights is None:
        raise CacheError(
            f"no network is known for the features of {origin}: they were imported from"
            f" {'elsewhere' if fingerprint.backbone is None else fingerprint.backbone!r}",
            remedy="Extract the images with `clinit extract`, which records the network.",
        )
    return str(fingerprint.weights)


NAMED_EARLIER = "named by an earlier command"
"""Source of class names that another command has already stored with the head."""


def named_head(head: Head, class_names: tuple[str, ...], asked: str | None, out: Path) -> NamedHead:
    """Return a head, which is about to be stored in the cache `out`, with class names.

    Args:
        head: The pretrained classifier.
        class_names: The classes of the data set that is extracted.
        asked: As in `name_rows`. If it finds no names, names that an earlier command has stored in
            `out` are used.
        out: The folder of the cache.

    Raises:
        ClinitError: As in `name_rows`.
    """
    named, source = name_rows(head, class_names, asked)
    if named.class_names is None:
        with suppress(HeadError):
            stored = read_head(out / HEAD_FILE)
            if stored.class_names is not None and stored.num_classes == head.num_classes:
                return NamedHead(replace(head, class_names=stored.class_names), NAMED_EARLIER)
    file = None if asked in (None, "dataset") else FileFacts.of(Path(asked))
    return NamedHead(named, source, file)


_IMAGENET_ROWS = 1000
ASSUMED = "ImageNet-1K (1,000 rows)"
"""Source of names that are not stored with the weights, but assumed for the number of rows."""


def name_rows(head: Head, class_names: tuple[str, ...], choice: str | None) -> tuple[Head, str]:
    """Return `head` with class names for its rows, and the source of the names.

    Args:
        head: The pretrained classifier, with the names stored in its weights file, if any.
        class_names: The classes of the data set that is extracted.
        choice: A file with one name per line; `dataset` for the classes of the data set, in their
            order; None for the names stored with the weights. If the weights contain no names and
            the classifier has 1,000 rows, None means the names of ImageNet-1K.

    Raises:
        HeadError: If the numbers of names and rows differ.
        CacheError: If the file cannot be read or names a class twice.
    """
    names, source = head.class_names, "stored with the weights"
    if choice == "dataset":
        names, source = class_names, "the classes of the data set"
    elif choice is not None:
        names, source = read_class_names(Path(choice), HEAD_LIST), choice
    elif names is None and head.num_classes == _IMAGENET_ROWS:
        names, source = read_dataset("imagenet1k").classes, ASSUMED
    if names is not None and len(names) != head.num_classes:
        raise HeadError(
            f"{source}: {len(names):,} names for a classifier of {head.num_classes:,} rows",
            remedy="Give one name per row with `--head-classes FILE`.",
        )
    return replace(head, class_names=names), UNKNOWN if names is None else source

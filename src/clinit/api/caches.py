"""Feature caches from Python: fill one, load it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from clinit.extract.dataset.scan import available_splits, scan
from clinit.extract.network.backbone import BackboneConfig
from clinit.extract.work.run import ExtractConfig
from clinit.extract.work.run import extract as extract_splits
from clinit.headtrain.stream.source import Source, read_source, read_sources
from clinit.machine import choose_device
from clinit.words import byte_count

Cache = Source | str | Path
"""A feature cache: loaded, or its folder."""
Caches = Cache | Sequence[str | Path]
"""One cache, or the folders of several of one backbone."""


def extract_features(
    images: str | Path,
    out: str | Path,
    backbone: str,
    *,
    dataset: str = "folder",
    splits: Sequence[str] | None = None,
    device: str = "auto",
    weights: str | Path | None = None,
    model_args: Mapping[str, Any] | None = None,
    **options: Any,
) -> Source:
    """Run a frozen timm backbone over images once; return its features, which stay in `out`.

    What is there already is kept: a call that was interrupted goes on. (`clinit.extract` is the
    package with the code.)

    Args:
        images: Root of the images: `split/class/image`, or the layout of a known data set.
        out: Folder of the cache.
        backbone: Name of a timm model.
        dataset: `folder`, `webdataset` (tar shards), `huggingface` (Parquet files), or a known data
            set such as `imagenet1k` or `places365`.
        splits: Splits to extract, of `train` and `val`; default: those that exist. `test` stands
            for `val` where the test images are to be that split.
        device: `auto`, `cuda` or `cpu`.
        weights: File of the weights; default: those that timm downloads.
        model_args: Further arguments of `timm.create_model`.
        options: Further settings of `clinit.extract.work.run.ExtractConfig`.

    Raises:
        ClinitError: If the images or the weights cannot be read, or the cache was made from
            other images or weights.
    """
    root, folder = Path(images), Path(out)
    found = splits or available_splits(dataset, root) or ("train",)
    read = [scan(dataset, root, split).manifest for split in found]
    manifests = {each.split: each for each in read}
    config = ExtractConfig(
        backbone=BackboneConfig(
            name=backbone,
            device=choose_device(device).type,
            weights=None if weights is None else Path(weights),
            model_args=dict(model_args or {}),
        ),
        **options,
    )
    for _ in extract_splits(manifests, root, folder, config):
        pass
    return read_source(folder)


def load_cache(path: str | Path, *, memory: int | str | None = None) -> Source:
    """Read a feature cache: arrays, labels, class names, and the pretrained head.

    Args:
        path: Its folder.
        memory: Most memory for features, in bytes or as `8GB`: what takes more stays on disk, and
            rows of it are read by `features[rows]`. Default: all features are read into memory.

    Raises:
        ValueError: If `memory` is no size.
        CacheError: If there is none, or it is incomplete or damaged.
        MachineError: If the memory does not hold a shard.
    """
    if memory is None:
        return read_source(Path(path))
    (source,) = read_sources(Path(path), memory=_bytes(memory))
    return source


def opened(base: Caches, new: Caches, memory: int | str | None) -> tuple[Source, Source]:
    """Open the caches that are given by their folders, all of them within the memory."""
    folders = [
        [Path(path) for path in ([each] if isinstance(each, str | Path) else each)]
        for each in (base, new)
        if not isinstance(each, Source)
    ]
    if memory is not None and not folders:
        raise ValueError(
            "both caches are loaded already: give their folders, or load them with memory="
        )
    read = iter(read_sources(*folders, memory=None if memory is None else _bytes(memory)))
    old, arriving = (each if isinstance(each, Source) else next(read) for each in (base, new))
    return old, arriving


def _bytes(memory: int | str) -> int:
    if isinstance(memory, int):
        return memory
    try:
        return byte_count(memory)
    except ValueError as error:
        raise ValueError(f"memory {error}") from error


def loaded(cache: Cache) -> Source:
    """Return a cache, read if it is given by its folder."""
    return cache if isinstance(cache, Source) else load_cache(cache)

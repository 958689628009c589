"""Extractions of a tiny network."""

from pathlib import Path
from typing import Any

from clinit.extract.cache.plan import WHOLE, Part
from clinit.extract.dataset.scan import available_splits, scan
from clinit.extract.network.backbone import BackboneConfig
from clinit.extract.work.run import ExtractConfig, extract
from clinit.extract.work.split_run import SplitResult
from clinit.observer import Observer, ignore
from tests.conftest import TINY_ARGS, TINY_MODEL


def tiny_backbone(weights: Path, **changes: Any) -> BackboneConfig:
    settings: dict[str, Any] = {"name": TINY_MODEL, "weights": weights, "model_args": TINY_ARGS}
    return BackboneConfig(**settings | changes)


def tiny_config(weights: Path, **changes: Any) -> ExtractConfig:
    settings: dict[str, Any] = {"input_size": 32, "batch_size": 4, "shard_rows": 6, "workers": 2}
    return ExtractConfig(backbone=tiny_backbone(weights), **settings | changes)


def extracted(
    root: Path,
    out: Path,
    config: ExtractConfig,
    part: Part = WHOLE,
    *,
    splits: tuple[str, ...] = (),
    observer: Observer = ignore,
) -> list[SplitResult]:
    """Extract the splits of a tree, or some of them; return what came of each."""
    found = splits or available_splits("folder", root)
    manifests = {split: scan("folder", root, split).manifest for split in found}
    return list(extract(manifests, root, out, config, part, observer=observer))


def files(folder: Path, *, without: str = "cache.json") -> dict[str, bytes]:
    """Everything in a cache but what tells of the run itself; no draft and no lock may be left."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name not in ("cache.json", without)
    }

"""Small made caches: Gaussian classes with bad rows among them."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import polars as pl

from clinit.extract.cache.fingerprint import Fingerprint
from clinit.extract.cache.head import Head, write_head
from clinit.extract.cache.plan import Plan, shard_name
from clinit.extract.cache.shard import assemble, write_shard
from clinit.extract.cache.summary import NamedHead, RunFacts, write_summary
from clinit.extract.dataset.manifest import Manifest, write_manifest

DIM, CLASSES = 64, 5
FINGERPRINT = Fingerprint({"backbone": "made", "weights": "1"})


def write_split(
    cache: Path,
    place: str,
    centres: np.ndarray,
    rows_per_class: int,
    *,
    bad: Sequence[int] = (),
    wide: Sequence[int] = (),
    fingerprint: Fingerprint = FINGERPRINT,
    seed: int = 0,
    dtype: str = "float16",
) -> None:
    """Write a complete split; the shards of the rows `wide` hold float32, all others float16."""
    folder, split = cache / place, "val" if place == "val" else "train"
    random = np.random.default_rng([seed, len(split)])
    names = tuple(f"{cache.name}{index}" for index in range(len(centres)))
    labels = np.repeat(np.arange(len(names)), rows_per_class)
    table = pl.DataFrame(
        {
            "path": [f"{row:03}.png" for row in range(len(labels))],
            "label": labels,
            "class_name": [names[label] for label in labels],
            "size_bytes": np.full(len(labels), 7, dtype=np.int64),
        }
    )
    manifest = Manifest("made", split, names, table)
    plan = Plan(
        dataset="made",
        split=split,
        num_rows=len(labels),
        dim=centres.shape[1],
        dtype=dtype,
        shard_rows=40,
        batch_size=40,
        fingerprint=fingerprint.of_rows(manifest.digest),
    )
    features = (centres[labels] + random.normal(size=(len(labels), centres.shape[1]))).astype("f4")
    features[list(wide), 0] = 1e5
    plan.settle(folder)
    write_manifest(manifest, folder / "manifest.parquet")
    for index in range(plan.num_shards):
        rows = list(plan.rows(index))
        reasons = {row - rows[0]: "truncated" for row in bad if row in rows}
        shard = assemble(features[rows], labels[rows], reasons, dtype=dtype)
        write_shard(shard, folder / shard_name(index), plan=plan, index=index)
    write_summary(folder, plan, manifest, NamedHead(), RunFacts())


def write_base(cache: Path, dtype: str = "float16") -> Path:
    """Write a base cache with a pretrained head."""
    centres = np.random.default_rng(0).normal(size=(CLASSES, DIM))
    write_split(cache, "train", centres, 40, bad=[3, 41, 42, 43], dtype=dtype)
    write_split(cache, "val", centres, 10, dtype=dtype)
    names = tuple(f"{cache.name}{index}" for index in range(CLASSES))
    weight, bias = 2 * centres, -(centres**2).sum(1)
    identifier = FINGERPRINT.backbone_identifier
    head = Head(weight.astype(np.float32), bias.astype(np.float32), names, identifier)
    write_head(head, cache / "head.safetensors")
    return cache


def write_views(cache: Path, number: int) -> None:
    """Add random views of the training rows of a base cache."""
    centres = np.random.default_rng(0).normal(size=(CLASSES, DIM))
    for view in range(number):
        fields = {**FINGERPRINT.fields, "augmentation": "made", "view_seed": "1", "view": f"{view}"}
        place, told = f"views/{view}", Fingerprint(fields)
        write_split(cache, place, centres, 40, bad=[3], fingerprint=told, seed=view + 1)


def write_new(cache: Path, dtype: str = "float16") -> Path:
    """Write a cache of new classes."""
    centres = np.random.default_rng(1).normal(size=(CLASSES, DIM))
    write_split(cache, "train", centres, 30, bad=[0, 100], dtype=dtype)
    write_split(cache, "val", centres, 10, dtype=dtype)
    return cache

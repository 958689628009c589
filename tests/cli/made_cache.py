from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl

from clinit.extract.fingerprint import Fingerprint
from clinit.extract.head import Head, write_head
from clinit.extract.manifest import Manifest, write_manifest
from clinit.extract.plan import Plan, settle_plan, shard_name
from clinit.extract.shard import assemble, write_shard
from clinit.extract.summary import RunFacts, write_summary

DIM, CLASSES = 8, 4


def write_cache(cache: Path, seed: int, weights: str = "1") -> Path:
    """Write a cache of four Gaussian classes and a head that knows them."""
    centres = np.random.default_rng(seed).normal(size=(CLASSES, DIM))
    names = tuple(f"{cache.name}{index}" for index in range(CLASSES))
    backbone = Fingerprint({"backbone": "made", "weights": weights})
    for split in ("train", "val"):
        labels = np.repeat(np.arange(CLASSES), 10)
        table = pl.DataFrame(
            {
                "path": [f"{names[label]}/{row:03}.png" for row, label in enumerate(labels)],
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
            dim=DIM,
            dtype="float16",
            shard_rows=40,
            batch_size=40,
            fingerprint=backbone.of_rows(manifest.digest),
        )
        noise = np.random.default_rng(len(split)).normal(size=(len(labels), DIM))
        features = (centres[labels] + 0.5 * noise).astype(np.float32)
        settle_plan(plan, cache / split)
        write_manifest(manifest, cache / split / "manifest.parquet")
        shard = assemble(features, labels, {}, dtype="float16")
        write_shard(shard, cache / split / shard_name(0), plan=plan, index=0)
        write_summary(cache / split, plan, manifest, head=None, head_classes="none", run=RunFacts())
    weight, bias = (10 * centres).astype(np.float32), (-5 * (centres**2).sum(1)).astype(np.float32)
    head = Head(weight, bias, names, backbone.backbone_identifier)
    write_head(head, cache / "head.safetensors")
    return cache

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch

from clinit.errors import CacheError
from clinit.extract.cache.features import FeatureSet
from clinit.extract.cache.fingerprint import Fingerprint
from clinit.extract.cache.head import Head
from clinit.extract.cache.plan import Plan, settle_plan, shard_name
from clinit.extract.cache.read import CacheSplit, open_cache
from clinit.extract.cache.shard import assemble, write_shard
from clinit.extract.cache.summary import RunFacts, write_summary
from clinit.extract.dataset.manifest import Manifest, write_manifest
from clinit.headtrain.probe.align import align, choose_views
from clinit.headtrain.probe.settings import AlignConfig
from clinit.headtrain.stream.seeds import Draw, generator
from clinit.headtrain.stream.source import Source, read_source

DIM, CLASSES, ROWS = 6, 4, 44
NAMES = tuple("abcd")
CENTRES = 2 * np.random.default_rng(0).normal(size=(CLASSES, DIM))
CONFIG = AlignConfig(loss="ce", epochs=5, batch_size=16, device="cpu")
HEAD = Head(
    np.random.default_rng(3).normal(size=(CLASSES, DIM)).astype(np.float32),
    np.zeros(CLASSES, np.float32),
    NAMES,
    "",
)


def write_split(
    cache: Path, folder: str, *, view: int | None = None, bad: tuple[int, ...] = ()
) -> np.ndarray:
    """Write Gaussian classes as an extraction would have; return the features of all rows."""
    labels = np.repeat(np.arange(CLASSES), ROWS // CLASSES)
    table = pl.DataFrame(
        {
            "path": [f"{NAMES[label]}/{row:03}.png" for row, label in enumerate(labels)],
            "label": labels,
            "class_name": [NAMES[label] for label in labels],
            "size_bytes": np.full(ROWS, 7, dtype=np.int64),
        }
    )
    split = "train" if view is not None else folder
    manifest = Manifest("made", split, NAMES, table)
    fingerprint = Fingerprint({"backbone": "made"}).of_rows(manifest.digest)
    if view is not None:
        fingerprint = fingerprint.of_view("cropped", seed=8, number=view)
    plan = Plan(
        dataset="made",
        split=split,
        num_rows=ROWS,
        dim=DIM,
        dtype="float16",
        shard_rows=20,
        batch_size=10,
        fingerprint=fingerprint,
    )
    noise = np.random.default_rng([len(folder), view or 0]).normal(size=(ROWS, DIM))
    features = (CENTRES[labels] + noise).astype(np.float16).astype(np.float32)
    settle_plan(plan, cache / folder)
    write_manifest(manifest, cache / folder / "manifest.parquet")
    for index in range(plan.num_shards):
        rows = list(plan.rows(index))
        reasons = {row - rows[0]: "truncated" for row in bad if row in rows}
        shard = assemble(features[rows], labels[rows], reasons, dtype="float16")
        path = cache / folder / shard_name(index)
        write_shard(shard, path, plan=plan, index=index)
    write_summary(cache / folder, plan, manifest, head=None, head_classes="none", run=RunFacts())
    return features


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    for split in ("train", "val"):
        write_split(tmp_path, split)
    return tmp_path


def views_of(cache: Path, number: int | None = None) -> tuple[CacheSplit, ...]:
    return choose_views(open_cache(cache), number)


def linear_layer(blocks: list[np.ndarray], rows: list[np.ndarray], epochs: int) -> np.ndarray:
    """Train a linear layer with AdamW and a cosine, an epoch on a block; return its weight."""
    layer = torch.nn.Linear(DIM, CLASSES)
    with torch.no_grad():
        layer.weight.copy_(torch.from_numpy(HEAD.weight))
        layer.bias.copy_(torch.from_numpy(HEAD.bias))
    optimizer = torch.optim.AdamW(layer.parameters(), lr=1e-3, weight_decay=0.05)
    labels = np.repeat(np.arange(CLASSES), ROWS // CLASSES)
    steps = sum(len(rows[epoch % len(rows)]) // 16 for epoch in range(epochs))
    step = 0
    for epoch in range(epochs):
        kept = rows[epoch % len(rows)]
        features = torch.from_numpy(blocks[epoch % len(blocks)][kept])
        targets = torch.from_numpy(labels[kept])
        order = generator(0, Draw.ALIGNMENT, epoch).permutation(len(kept))
        for start in range(0, len(kept) - 15, 16):
            batch = order[start : start + 16]
            for group in optimizer.param_groups:
                group["lr"] = 1e-3 * (1 + np.cos(np.pi * step / steps)) / 2
            optimizer.zero_grad()
            loss = torch.nn.functional.cross_entropy(layer(features[batch]), targets[batch])
            loss.backward()
            optimizer.step()
            step += 1
    weight: np.ndarray = layer.weight.detach().numpy()
    return weight


@pytest.mark.parametrize("number", [1, 2, 3])
def test_epochs_train_on_the_views_in_turn(cache: Path, number: int) -> None:
    blocks = [write_split(cache, f"views/{view}", view=view) for view in range(number)]
    found = align(read_source(cache), HEAD, CONFIG, views_of(cache))
    expected = linear_layer(blocks, [np.arange(ROWS)] * number, 5)
    np.testing.assert_allclose(found.head.weight, expected, atol=1e-5)
    told = {name: found.facts[name] for name in ("views", "view_seed", "augmentation")}
    assert told == {"views": number, "view_seed": 8, "augmentation": "cropped"}
    assert found.facts["train_rows"] == ROWS
    assert len(found.facts["loss_by_epoch"]) == 5


def test_without_views_the_plain_features_are_trained_on_and_that_is_said(cache: Path) -> None:
    plain = align(read_source(cache), HEAD, CONFIG)
    write_split(cache, "views/0", view=0)
    ignored = align(read_source(cache), HEAD, CONFIG, views_of(cache, 0))
    np.testing.assert_array_equal(plain.head.weight, ignored.head.weight)
    assert ignored.facts["views"] == 0
    assert ignored.facts["view_seed"] is None
    assert ignored.facts["augmentation"] == "none: the plain images"


@pytest.mark.slow
def test_one_view_at_a_time_is_in_memory(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import gc
    import weakref

    for view in range(3):
        write_split(cache, f"views/{view}", view=view)
    alive: list[int] = []
    loaded: list[weakref.ref[Any]] = []
    load = CacheSplit.load

    def watched(split: CacheSplit) -> FeatureSet:
        gc.collect()
        alive.append(sum(reference() is not None for reference in loaded))
        data = load(split)
        loaded.append(weakref.ref(data.features))
        return data

    source, views = read_source(cache), views_of(cache)
    monkeypatch.setattr(CacheSplit, "load", watched)
    align(source, HEAD, CONFIG, views)
    assert alive == [0] * 5


def test_a_view_or_a_cache_without_a_row_is_refused(cache: Path) -> None:
    write_split(cache, "views/0", view=0, bad=tuple(range(ROWS)))
    with pytest.raises(CacheError, match="no row of features to align with"):
        align(read_source(cache), HEAD, CONFIG, views_of(cache))
    nothing = FeatureSet(np.empty((0, DIM), np.float16), np.empty(0, np.int64), NAMES)
    with pytest.raises(CacheError, match="no row of features to align with"):
        align(Source(nothing, nothing), HEAD, CONFIG)

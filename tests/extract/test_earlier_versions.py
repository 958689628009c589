"""Caches of earlier versions open, are verified, and learn what they lack from their command."""

import json
from collections.abc import Callable
from pathlib import Path

import h5py
import numpy as np
import polars as pl
import pytest
from safetensors.numpy import load_file, save_file

from clinit.errors import CacheError
from clinit.extract.arrays.import_features import ImportConfig, import_features
from clinit.extract.cache.fingerprint import Fingerprint
from clinit.extract.cache.head import tensors_sha256
from clinit.extract.cache.plan import Plan, read_plan
from clinit.extract.cache.read import open_cache
from clinit.extract.cache.shard import Shard, assemble, file_sha256, read_shard
from clinit.extract.cache.verify import verify
from tests.extract.work.made import extracted, tiny_config


def write_shard_as_before(shard: Shard, path: Path, plan: Plan) -> None:
    """Write a shard without a user block; the digest of its content is an attribute."""
    rows = sorted(shard.reasons)
    with h5py.File(path, "w") as file:
        file.create_dataset("features", data=shard.features, chunks=shard.features.shape)
        file.create_dataset("labels", data=shard.labels)
        file.create_dataset("valid", data=shard.valid)
        file.create_dataset("invalid_rows", data=np.array(rows, dtype=np.int64))
        reasons = [shard.reasons[row] for row in rows]
        kind = h5py.string_dtype()
        file.create_dataset("invalid_reasons", data=reasons, shape=(len(rows),), dtype=kind)
        file.attrs["plan"] = plan.identifier
        file.attrs["sha256"] = shard.digest()


def write_as_before(cache: Path) -> None:
    """Write the documents of a cache as version 1 of the format did: unsealed, less in them."""
    for path in [*cache.rglob("plan.json"), *cache.rglob("cache.json")]:
        content = json.loads(path.read_text())
        del content["sha256"]
        content["format"] = "clinit-cache/1"
        if path.name == "cache.json":
            head = content["head"]
            del head["tensors"]
            head["top1_percent"] = 100 * head["correct"] / head["total"] if head["total"] else None
        path.write_text(json.dumps(content, indent=2) + "\n")
    for path in cache.rglob("shard-*.h5"):
        plan = read_plan(path.parent)
        shard = read_shard(path, plan, int(path.stem.removeprefix("shard-")))
        write_shard_as_before(shard, path, plan)
        facts = json.loads((path.parent / "cache.json").read_text())
        facts["shards"][int(path.stem.removeprefix("shard-"))]["sha256"] = file_sha256(path)
        (path.parent / "cache.json").write_text(json.dumps(facts))
    for path in cache.rglob("manifest.parquet"):
        told = pl.read_parquet_metadata(path)
        del told["ARROW:schema"], told["sha256"]
        pl.read_parquet(path).write_parquet(path, metadata=told | {"format": "clinit-manifest/1"})
    path = cache / "head.safetensors"
    if path.is_file():
        head = open_cache(cache).head
        assert head is not None
        facts = {"fingerprint": head.fingerprint, "class_names": head.class_names}
        save_file(load_file(path), path, metadata={"clinit_head": json.dumps(facts)})


@pytest.fixture
def run(make_tree: Callable[..., Path], tiny_weights: Path, tmp_path: Path) -> Callable[[], Path]:
    root, config = make_tree(), tiny_config(tiny_weights, views=1)
    (root / "train" / "b" / "2.png").write_text("no pixels")

    def extract() -> Path:
        results = extracted(root, tmp_path / "cache", config)
        assert sum(result.computed_rows for result in results) in (0, 15 + 15 + 6)
        return tmp_path / "cache"

    return extract


def problems(cache: Path) -> list[str]:
    return [str(problem) for part in verify(cache) for problem in part.problems]


def test_an_extracted_cache_opens_verifies_and_is_completed_without_computing(
    run: Callable[[], Path],
) -> None:
    cache = run()
    today = open_cache(cache)
    expected = {name: split.load() for name, split in today.splits.items()}
    write_as_before(cache)
    before = open_cache(cache)
    for name, split in before.splits.items():
        assert split.plan == today.splits[name].plan
        assert split.summary.head.tensors is None
        np.testing.assert_array_equal(split.load().features, expected[name].features)
        np.testing.assert_array_equal(split.load().labels, expected[name].labels)
    assert len(before.views) == 1
    assert problems(cache) == []
    assert [part.told for part in verify(cache)][-2] == (
        "head: 3 rows read; an earlier version of clinit stored it without a digest"
    )
    path = cache / "val" / "plan.json"
    whole = path.read_text()
    path.write_text(whole.replace('"timm"', '"Timm"'))
    assert "belong to different extractions" in problems(cache)[0]
    path.write_text(whole)
    run()
    after = open_cache(cache)
    assert after.head is not None
    assert after.split("train").summary.head.tensors == tensors_sha256(after.head)
    assert [part.told for part in verify(cache)][-2] == "head: 3 rows read"


@pytest.fixture
def imported(tmp_path: Path) -> Callable[[str, str], Path]:
    """Import features into a cache; `backbone` as earlier versions wrote it."""

    def make(name: str, backbone: str) -> Path:
        labels = np.arange(12) % 4
        features = np.random.default_rng(len(name)).normal(size=(12, 6)).astype(np.float32)
        np.save(tmp_path / "x.npy", features)
        np.save(tmp_path / "y.npy", labels)
        config = ImportConfig(backbone="none")
        object.__setattr__(config, "backbone", backbone)  # `imported` is refused today
        import_features(tmp_path / "x.npy", tmp_path / "y.npy", tmp_path / name, config)
        return tmp_path / name

    return make


def test_an_import_of_an_earlier_version_is_not_gone_on_with_but_begun_anew(
    imported: Callable[[str, str], Path], tmp_path: Path
) -> None:
    cache = imported("clip", "clip")
    whole = (cache / "train" / "shard-00000.h5").read_bytes()
    (cache / "train" / "cache.json").unlink()
    path = cache / "train" / "plan.json"
    content = json.loads(path.read_text())
    del content["sha256"], content["fingerprint"]["features"]
    path.write_text(json.dumps(content | {"format": "clinit-cache/1"}))
    imported("clip", "clip")
    assert open_cache(cache).split("train").load().dim == 6
    assert (cache / "train" / "shard-00000.h5").read_bytes() == whole


def test_a_shard_of_an_earlier_version_is_read_and_verified(tmp_path: Path) -> None:
    shard = assemble(np.eye(3, 4), np.arange(3), {1: "bad"}, dtype="float16")
    plan = Plan(
        dataset="made",
        split="train",
        num_rows=3,
        dim=4,
        dtype="float16",
        shard_rows=3,
        batch_size=3,
        fingerprint=Fingerprint(),
    )
    path = tmp_path / "a.h5"
    write_shard_as_before(shard, path, plan)
    assert read_shard(path, plan, 0).digest() == shard.digest()
    for name in ("features", "labels"):
        write_shard_as_before(shard, path, plan)
        with h5py.File(path, "r+") as file:
            file[name][0] += 1
        with pytest.raises(CacheError, match=r"a\.h5 has changed since it was written"):
            read_shard(path, plan, 0)

"""What is exported is imported again bit for bit, in every format."""

import json
from pathlib import Path
from typing import Literal

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import save_file

from clinit.errors import CacheError
from clinit.extract.cache.export_features import Exported, export_features
from clinit.extract.cache.read import Cache, CacheSplit, open_cache
from clinit.extract.work import import_features as import_module
from clinit.extract.work.import_features import import_features
from clinit.extract.work.options import ImportConfig
from tests.headtrain.protocol.stream.made_caches import write_split

NAMES = ("zebra", "ant", "no row", "bée")
LABELS = np.sort(np.arange(23) % 4 * np.array([1, 1, 0, 1])[np.arange(23) % 4])


def write(
    cache: Path,
    features: np.ndarray,
    names: tuple[str, ...] = NAMES,
    split: Literal["train", "val"] = "train",
) -> Cache:
    """Import 23 rows or a multiple of them in shards of 5."""
    path = cache.with_suffix(".safetensors")
    labels = np.resize(LABELS, len(features))
    save_file(
        {"features": features, "labels": np.sort(labels)},
        path,
        metadata={"class_names": json.dumps(names)},
    )
    config = ImportConfig(backbone="made", dataset="made", split=split)
    import_features(path, None, cache, config)
    return open_cache(cache)


@pytest.fixture
def features() -> np.ndarray:
    return np.random.default_rng(0).normal(size=(23, 3)).astype(np.float16)


@pytest.fixture
def cache(tmp_path: Path, features: np.ndarray, monkeypatch: pytest.MonkeyPatch) -> Cache:
    """A cache of both splits; two rows of train have no features."""
    monkeypatch.setattr(import_module, "SHARD_ROWS", 5)
    write(tmp_path / "cache", 2 * features, split="val")
    features[[1, 17]] = np.nan
    return write(tmp_path / "cache", features)


def exported(cache: Cache, out: Path) -> list[Exported]:
    return list(export_features(list(cache.splits.values()), out))


def imported(path: Path, out: Path) -> CacheSplit:
    return import_features(path, None, out, ImportConfig(backbone="made"))


def same(one: CacheSplit, other: CacheSplit) -> None:
    here, there = one.load(), other.load()
    assert here.features.dtype == there.features.dtype
    assert here.features.tobytes() == there.features.tobytes()
    assert here.labels.tolist() == there.labels.tolist()
    assert here.class_names == there.class_names


def test_an_export_is_imported_bit_for_bit_and_replaces_an_earlier_one(
    tmp_path: Path, cache: Cache
) -> None:
    exported(cache, tmp_path / "out")
    before = {p: p.read_bytes() for p in (tmp_path / "out").iterdir()}
    train, val = exported(cache, tmp_path / "out")
    assert (train.num_rows, train.num_left_out) == (21, 2)
    assert (val.num_rows, val.num_left_out) == (23, 0)
    for each in (train, val):
        same(imported(each.path, tmp_path / f"again-{each.split.plan.split}"), each.split)
    assert {p: p.read_bytes() for p in (tmp_path / "out").iterdir()} == before


def test_one_wide_shard_makes_the_export_wide_and_loses_nothing(tmp_path: Path) -> None:
    write_split(tmp_path / "cache", "train", np.eye(3), 30, wide=[45])
    split = open_cache(tmp_path / "cache").split("train")
    assert [each.features.dtype.name for each in split.shards()][:2] == ["float16", "float32"]
    (found,) = exported(open_cache(tmp_path / "cache"), tmp_path / "out")
    same(imported(found.path, tmp_path / "again"), split)


def test_the_files_are_what_others_read(tmp_path: Path, cache: Cache) -> None:
    split = cache.split("train")
    whole, rows = split.load(), np.flatnonzero(split.valid)
    exported(cache, tmp_path)
    with safe_open(tmp_path / "train.safetensors", framework="numpy") as file:
        np.testing.assert_array_equal(file.get_tensor("features"), whole.features)
        np.testing.assert_array_equal(file.get_tensor("labels"), whole.labels)
        np.testing.assert_array_equal(file.get_tensor("rows"), rows)
        told = file.metadata()
    assert json.loads(told.pop("class_names")) == list(NAMES)
    assert told == {"dataset": "made", "split": "train", "backbone": "made"}


def test_a_damaged_shard_stops_the_export_and_leaves_no_file(tmp_path: Path, cache: Cache) -> None:
    shard = cache.split("train").path / "shard-00003.h5"
    shard.write_bytes(shard.read_bytes()[:-1])
    with pytest.raises(CacheError, match=r"shard-00003\.h5 has changed since it was written"):
        exported(cache, tmp_path / "out")
    assert not list((tmp_path / "out").iterdir())


@pytest.mark.parametrize(
    ("name", "fact"),
    [
        ("all.safetensors", "has 2 splits"),
        ("all.npy", "expected a folder"),
        ("file", "expected a folder"),
        ("cache", "is inside the exported cache"),
        ("link", "is inside the exported cache"),
    ],
)
def test_a_place_that_does_not_fit_is_refused(
    tmp_path: Path, cache: Cache, monkeypatch: pytest.MonkeyPatch, name: str, fact: str
) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to(cache.path)
    before = {path: path.read_bytes() for path in cache.path.rglob("*") if path.is_file()}
    monkeypatch.chdir(tmp_path)
    relative = open_cache(Path("cache"))  # as typed, beside an absolute target
    with pytest.raises(CacheError, match=fact):
        exported(relative, tmp_path / name)
    assert {p: p.read_bytes() for p in cache.path.rglob("*") if p.is_file()} == before

"""What is exported is imported again bit for bit, in every format."""

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import save_file

from clinit.errors import CacheError
from clinit.extract.arrays import import_features as import_module
from clinit.extract.arrays.export_features import Exported, export_features
from clinit.extract.arrays.import_features import ImportConfig, import_features
from clinit.extract.cache.read import Cache, CacheSplit, open_cache
from tests.headtrain.protocol.stream.made_caches import write_split

NAMES = ("zebra", "ant", "no row", "bée")
LABELS = np.sort(np.arange(23) % 4 * np.array([1, 1, 0, 1])[np.arange(23) % 4])
FORMATS = ("npy", "safetensors")


def write(
    cache: Path, features: np.ndarray, names: tuple[str, ...] = NAMES, split: str = "train"
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


def exported(cache: Cache, out: Path, format: str | None = None) -> list[Exported]:
    return list(export_features(list(cache.splits.values()), out, format))


def imported(path: Path, out: Path) -> CacheSplit:
    config = ImportConfig(backbone="made")
    if path.is_dir():
        config = ImportConfig(backbone="made", classes=path / "classes.txt")
        return import_features(path / "features.npy", path / "labels.npy", out, config)
    return import_features(path, None, out, config)


def same(one: CacheSplit, other: CacheSplit) -> None:
    here, there = one.load(), other.load()
    assert here.features.dtype == there.features.dtype
    assert here.features.tobytes() == there.features.tobytes()
    assert here.labels.tolist() == there.labels.tolist()
    assert here.class_names == there.class_names


@pytest.mark.parametrize("format", FORMATS)
def test_an_export_is_imported_bit_for_bit(tmp_path: Path, cache: Cache, format: str) -> None:
    train, val = exported(cache, tmp_path / "out", format)
    assert (train.num_rows, train.num_left_out) == (21, 2)
    assert (val.num_rows, val.num_left_out) == (23, 0)
    for each in (train, val):
        same(imported(each.path, tmp_path / f"again-{each.split.plan.split}"), each.split)


@pytest.mark.parametrize("format", FORMATS)
def test_one_wide_shard_makes_the_export_wide_and_loses_nothing(
    tmp_path: Path, format: str
) -> None:
    write_split(tmp_path / "cache", "train", np.eye(3), 30, wide=[45])
    split = open_cache(tmp_path / "cache").split("train")
    assert [each.features.dtype.name for each in split.shards()][:2] == ["float16", "float32"]
    (found,) = exported(open_cache(tmp_path / "cache"), tmp_path / "out", format)
    same(imported(found.path, tmp_path / "again"), split)


def test_the_files_are_what_others_read(tmp_path: Path, cache: Cache) -> None:
    split = cache.split("train")
    whole, rows = split.load(), np.flatnonzero(split.valid)
    for format in FORMATS:
        exported(cache, tmp_path / format, format)
    folder = tmp_path / "npy" / "train"
    np.testing.assert_array_equal(np.load(folder / "features.npy"), whole.features)
    np.testing.assert_array_equal(np.load(folder / "labels.npy"), whole.labels)
    np.testing.assert_array_equal(np.load(folder / "rows.npy"), rows)
    assert (folder / "classes.txt").read_text(encoding="utf-8").splitlines() == list(NAMES)
    with safe_open(tmp_path / "safetensors" / "train.safetensors", framework="numpy") as file:
        np.testing.assert_array_equal(file.get_tensor("features"), whole.features)
        np.testing.assert_array_equal(file.get_tensor("labels"), whole.labels)
        np.testing.assert_array_equal(file.get_tensor("rows"), rows)
        told = file.metadata()
    assert json.loads(told.pop("class_names")) == list(NAMES)
    assert told == {"dataset": "made", "split": "train", "backbone": "made"}


@pytest.mark.parametrize("format", FORMATS)
def test_an_export_replaces_an_earlier_one_and_equal_caches_give_equal_files(
    tmp_path: Path, cache: Cache, format: str
) -> None:
    exported(cache, tmp_path / "out", format)
    before = {p: p.read_bytes() for p in (tmp_path / "out").rglob("*") if p.is_file()}
    exported(cache, tmp_path / "out", format)
    assert {p: p.read_bytes() for p in before} == before
    assert not list((tmp_path / "out").rglob("*.tmp-*"))


@pytest.mark.parametrize("format", FORMATS)
def test_a_damaged_shard_stops_the_export_and_leaves_no_file(
    tmp_path: Path, cache: Cache, format: str
) -> None:
    shard = cache.split("train").path / "shard-00003.h5"
    shard.write_bytes(shard.read_bytes()[:-1])
    with pytest.raises(CacheError, match=r"shard-00003\.h5 has changed since it was written"):
        exported(cache, tmp_path / "out", format)
    left = [path.name for path in (tmp_path / "out").rglob("*") if path.is_file()]
    assert {"features.npy", f"train.{format}"}.isdisjoint(left)
    assert not any("tmp-" in name for name in left)


@pytest.mark.parametrize(
    ("name", "format", "fact"),
    [
        ("all.safetensors", None, "has 2 splits"),
        ("all.safetensors", "npy", "the format is npy"),
        ("all.npy", None, "expected a folder"),
        ("all.csv", None, "expected a folder"),
        ("file", None, "expected a folder"),
    ],
)
def test_a_file_that_does_not_fit_is_refused(
    tmp_path: Path, cache: Cache, name: str, format: str | None, fact: str
) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(CacheError, match=fact):
        exported(cache, tmp_path / name, format)
    assert not (tmp_path / name).is_dir()


@pytest.mark.parametrize(
    ("target", "format", "split"),
    [
        ("", "npy", None),
        ("", "safetensors", None),
        ("../link", "npy", None),
        ("../link/head.safetensors", None, "val"),
    ],
)
def test_an_export_into_the_cache_is_refused_by_whatever_name(
    tmp_path: Path,
    cache: Cache,
    monkeypatch: pytest.MonkeyPatch,
    target: str,
    format: str | None,
    split: str | None,
) -> None:
    (tmp_path / "link").symlink_to(cache.path)
    before = {path: path.read_bytes() for path in cache.path.rglob("*") if path.is_file()}
    monkeypatch.chdir(tmp_path)
    relative = open_cache(Path("cache"))  # as typed, beside an absolute target
    splits = [relative.split(split)] if split else list(relative.splits.values())
    with pytest.raises(CacheError, match="is inside the exported cache"):
        list(export_features(splits, cache.path / target, format))
    assert {p: p.read_bytes() for p in cache.path.rglob("*") if p.is_file()} == before

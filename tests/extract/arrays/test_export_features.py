"""What is exported is imported again bit for bit, in every format."""

from __future__ import annotations

import json
import resource
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from safetensors import safe_open

from clinit.errors import CacheError, ClinitError
from clinit.extract.arrays import import_features as import_module
from clinit.extract.arrays.export_features import Exported, export_features
from clinit.extract.arrays.import_features import ImportConfig, import_features
from clinit.extract.arrays.write_split import SplitWriter
from clinit.extract.cache.fingerprint import Fingerprint
from clinit.extract.cache.plan import Plan
from clinit.extract.cache.read import Cache, CacheSplit, open_cache
from clinit.extract.cache.shard import assemble
from clinit.extract.cache.summary import RunFacts
from clinit.extract.dataset.manifest import Manifest

NAMES = ("zebra", "ant", "no row", "bée")
LABELS = np.sort(np.arange(23) % 4 * np.array([1, 1, 0, 1])[np.arange(23) % 4])
FORMATS = ("npy", "safetensors", "parquet")


def write(folder: Path, split: str, features: np.ndarray, dtype: str = "float16") -> CacheSplit:
    """Write a split of 23 rows in shards of 5, as an extraction would."""
    paths = [f"{split}/{row:03d}.png" for row in range(23)]
    table = pl.DataFrame(
        {"path": paths, "label": LABELS, "class_name": [NAMES[n] for n in LABELS]}
    ).with_columns(size_bytes=pl.lit(9, dtype=pl.Int64))
    manifest = Manifest("made", split, NAMES, table)
    fingerprint = Fingerprint({"backbone": "made", "weights": "1", "dtype": dtype})
    writer = SplitWriter(
        out=folder,
        plan=Plan(
            dataset="made",
            split=split,
            num_rows=23,
            dim=features.shape[1],
            dtype=dtype,
            shard_rows=5,
            batch_size=5,
            fingerprint=fingerprint.of_rows(manifest.digest),
        ),
        manifest=manifest,
        head=None,
        head_classes="unknown",
        run=RunFacts(root="/images"),
        on_rows=lambda done, total: None,
    )
    with writer.claimed(lambda note: None):
        return writer.write(
            lambda rows: assemble(
                features[rows.start : rows.stop], LABELS[rows.start : rows.stop], {}, dtype=dtype
            )
        )


@pytest.fixture
def features() -> np.ndarray:
    return np.random.default_rng(0).normal(size=(23, 3)).astype(np.float32)


@pytest.fixture
def cache(tmp_path: Path, features: np.ndarray) -> Cache:
    """A cache of both splits; two rows of train have no features."""
    features[[1, 17]] = np.nan
    write(tmp_path / "cache", "train", features)
    write(tmp_path / "cache", "val", np.nan_to_num(2 * features))
    return open_cache(tmp_path / "cache")


def exported(
    cache: Cache, out: Path, format: str | None = None, *, keep_invalid: bool = False
) -> list[Exported]:
    splits = list(cache.splits.values())
    return list(export_features(splits, out, format, keep_invalid=keep_invalid))


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
def test_an_export_is_imported_bit_for_bit(
    tmp_path: Path, cache: Cache, format: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(import_module, "SHARD_ROWS", 4)
    train, val = exported(cache, tmp_path / "out", format)
    assert (train.num_rows, train.num_left_out) == (21, 2)
    assert (val.num_rows, val.num_left_out) == (23, 0)
    for each in (train, val):
        same(imported(each.path, tmp_path / f"again-{each.split.plan.split}"), each.split)


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_one_wide_shard_makes_the_export_wide_and_loses_nothing(
    tmp_path: Path, features: np.ndarray, format: str, dtype: str
) -> None:
    features[7] *= 1e6  # float16 does not hold it
    split = write(tmp_path / "cache", "train", features, dtype)
    shards = [shard.features.dtype.name for shard in split.shards()]
    assert shards[:2] == [dtype, "float32"]
    (found,) = exported(open_cache(tmp_path / "cache"), tmp_path / "out", format)
    same(imported(found.path, tmp_path / "again"), split)


@pytest.mark.parametrize("format", FORMATS)
def test_rows_that_are_kept_without_features_are_invalid_again(
    tmp_path: Path, cache: Cache, format: str
) -> None:
    found = exported(cache, tmp_path / "out", format, keep_invalid=True)[0]
    assert (found.num_rows, found.num_left_out) == (23, 0)
    again = imported(found.path, tmp_path / "again")
    assert again.valid.tolist() == found.split.valid.tolist()
    same(again, found.split)


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
    table = pl.read_parquet(tmp_path / "parquet" / "train.parquet")
    np.testing.assert_array_equal(table["features"].to_numpy(), whole.features)
    assert table["row"].to_list() == rows.tolist()
    images = split.manifest.table[rows]
    assert table.select("path", "label", "class_name").equals(
        images.select("path", "label", "class_name")
    )


def test_an_export_replaces_an_earlier_one_and_equal_caches_give_equal_files(
    tmp_path: Path, cache: Cache
) -> None:
    for format in FORMATS:
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


def test_a_file_that_does_not_fit_is_refused(tmp_path: Path, cache: Cache) -> None:
    with pytest.raises(CacheError, match="is one file, but the cache has 2 splits") as caught:
        exported(cache, tmp_path / "all.parquet")
    assert "`--split`" in caught.value.remedy
    with pytest.raises(CacheError, match=r"named like a .parquet file, but the format is npy"):
        exported(cache, tmp_path / "all.parquet", "npy")
    with pytest.raises(CacheError, match="one file, but features and labels are two arrays"):
        exported(cache, tmp_path / "all.npy")
    (tmp_path / "file").touch()
    with pytest.raises(CacheError, match="is a file, expected a folder"):
        exported(cache, tmp_path / "file")
    with pytest.raises(CacheError, match="lies in the cache itself"):
        exported(cache, cache.path)
    with pytest.raises(ValueError, match="format must be one of npy, safetensors, parquet"):
        exported(cache, tmp_path / "out", "csv")


def test_a_split_without_features_is_not_exported(tmp_path: Path) -> None:
    write(tmp_path / "cache", "train", np.full((23, 3), np.nan, np.float32))
    with pytest.raises(CacheError, match=r"none of the 23 rows of .* has features") as caught:
        exported(open_cache(tmp_path / "cache"), tmp_path / "out")
    assert "--retry-invalid" in caught.value.remedy


def test_names_that_are_no_lines_are_refused_as_lines(
    tmp_path: Path, features: np.ndarray, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(f"{__name__}.NAMES", ("two\nlines", "ant", "no row", " blank"))
    write(tmp_path / "cache", "train", features)
    cache = open_cache(tmp_path / "cache")
    with pytest.raises(CacheError, match="the class name 'two\\\\nlines' cannot be a line of"):
        exported(cache, tmp_path / "out")
    for format in ("safetensors", "parquet"):
        (found,) = exported(cache, tmp_path / "out", format)
        same(imported(found.path, tmp_path / f"again-{format}"), found.split)


@pytest.mark.parametrize(
    ("target", "format", "split"),
    [
        ("head.safetensors", None, "train"),
        ("train/manifest.parquet", None, "train"),
        ("views/0/x.parquet", None, "val"),
        ("", "npy", None),
        ("", "safetensors", None),
        ("train", "npy", None),
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
    with pytest.raises(CacheError, match="lies in the cache itself") as caught:
        list(export_features(splits, cache.path / target, format))
    assert caught.value.remedy == "Export into another folder."
    assert {p: p.read_bytes() for p in cache.path.rglob("*") if p.is_file()} == before


@pytest.mark.parametrize("format", FORMATS)
def test_a_full_disk_is_told_in_every_format(
    tmp_path: Path, features: np.ndarray, format: str
) -> None:
    write(tmp_path / "cache", "train", np.tile(features, 500))
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (40_000, hard))  # a write beyond it fails
    try:
        with pytest.raises(ClinitError, match=r"cannot write .*train") as caught:
            exported(open_cache(tmp_path / "cache"), tmp_path / "out", format)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert caught.value.remedy.startswith("Free space")
    assert not [path for path in (tmp_path / "out").rglob("*") if "tmp-" in path.name]

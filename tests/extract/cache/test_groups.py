"""Groups of images, recorded beside the manifest of a cache."""

import shutil
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from clinit.errors import CacheError
from clinit.extract.cache.groups import GROUPS_FILE
from clinit.extract.cache.read import open_cache, stored_features
from clinit.headtrain.heads.repeats import groups_of
from clinit.headtrain.protocol.stream.source import read_source
from tests.cli.calls import call


@pytest.fixture
def imported(tmp_path: Path) -> Path:
    """Return a cache of eight imported rows of two classes."""
    np.save(tmp_path / "x.npy", np.random.default_rng(0).normal(size=(8, 5)).astype(np.float32))
    np.save(tmp_path / "y.npy", np.array([1, 0] * 4))
    out = tmp_path / "cache"
    run("import", tmp_path / "x.npy", tmp_path / "y.npy", "--backbone", "x", "--out", out)
    return out


def run(*arguments: object) -> str:
    result = call("cache", *arguments)
    if result.exception is not None:
        raise result.exception
    return result.output


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
@pytest.mark.parametrize("named", [False, True])
def test_a_column_groups_the_rows_of_a_class(
    imported: Path, tmp_path: Path, suffix: str, named: bool
) -> None:
    before = read_source(imported).description
    table = pl.DataFrame(
        {"path": list("01234567"), "video": ["a", "a", "a", "a", "b", "b", None, None]}
    )
    table = table.reverse() if named else table.drop("path")
    file = tmp_path / f"frames{suffix}"
    (table.write_csv if suffix == ".csv" else table.write_parquet)(file)
    assert "Of 8 images, 2 repeat other images: 2 groups by video" in run(
        "group", imported, file, "--column", "video"
    )
    source = read_source(imported)
    # Class 0 has the rows 1, 3, 5, 7 of the file, class 1 has 0, 2, 4, 6.
    np.testing.assert_array_equal(groups_of(source.train), [0, 0, 2, 3, 4, 4, 6, 7])
    stored = stored_features(open_cache(imported).split("train"))
    np.testing.assert_array_equal(stored.groups, source.train.groups)
    assert source.train.part(np.array([True, False] * 4)).groups is not None
    after = source.description
    assert {**after, "groups_digest": None} == {**before, "groups_digest": None} != after


def test_imported_rows_repeat_each_other_only_on_request(tmp_path: Path) -> None:
    rows = np.random.default_rng(0).normal(size=(20, 5)).astype(np.float32)
    np.save(tmp_path / "x.npy", np.concatenate([rows, rows[:2]]))
    np.save(tmp_path / "y.npy", np.concatenate([np.arange(20) % 2, [0, 1]]))
    out = tmp_path / "cache"
    run("import", tmp_path / "x.npy", tmp_path / "y.npy", "--backbone", "x", "--out", out)
    train = read_source(out).train
    assert len(np.unique(groups_of(train))) == 22
    assert train.named(("1",)).groups is not None
    found = ("found", "2 seem to repeat other images: 2 groups found", 20)
    for how, told, groups in (found, ("none", "0 repeat other images: 0 groups", 22)) * 2:
        told += f"\nRecorded in {out}/train/groups.parquet: without it"
        assert told in run("group", out, "--groups", how)
        assert len(np.unique(groups_of(read_source(out).train))) == groups


def test_what_does_not_fit_is_refused(imported: Path, tmp_path: Path) -> None:
    file = tmp_path / "frames.csv"
    file.write_text("path,video\n0,a\n7,a\n")
    with pytest.raises(CacheError, match="6 of 8 images"):
        run("group", imported, file, "--column", "video")
    with pytest.raises(CacheError, match="'patient'"):
        run("group", imported, file, "--column", "patient")
    file.write_text("video\n" + "a\n" * 8)
    run("group", imported, file, "--column", "video")
    np.save(tmp_path / "y.npy", np.array([1, 1] * 4))
    other = tmp_path / "other"
    run("import", tmp_path / "x.npy", tmp_path / "y.npy", "--backbone", "x", "--out", other)
    shutil.copy(imported / "train" / GROUPS_FILE, other / "train" / GROUPS_FILE)
    with pytest.raises(CacheError, match="other images"):
        read_source(other)

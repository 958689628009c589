import os
from io import BufferedReader, FileIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from clinit.errors import CacheError, StorageError
from clinit.extract.cache import shard
from clinit.extract.cache.features import StoredRows, select_rows
from clinit.extract.cache.read import CacheSplit, open_split, stored_features
from tests.headtrain.protocol.stream.made_caches import write_split

CENTRES = np.random.default_rng(0).normal(size=(5, 16))


def made(folder: Path, *, wide: tuple[int, ...] = ()) -> CacheSplit:
    """150 rows in four shards, some of them bad; those with a row of `wide` are float32."""
    write_split(folder, "train", CENTRES, 30, bad=[0, 5, 6, 79, 80, 149], wide=wide)
    return open_split(folder / "train")


@pytest.mark.parametrize("wide", [(), (50,)])
def test_rows_are_those_of_the_loaded_features_in_any_order(
    tmp_path: Path, wide: tuple[int, ...]
) -> None:
    split = made(tmp_path / "a", wide=wide)
    expected, found = split.load(), stored_features(split)
    assert isinstance(found.features, StoredRows)
    assert found.features.dtype == expected.features.dtype == ("f4" if wide else "f2")
    assert found.features.shape == expected.features.shape == (144, 16)
    assert found.features.nbytes == expected.features.nbytes
    np.testing.assert_array_equal(found.labels, expected.labels)
    random = np.random.default_rng(1)
    chosen = [random.integers(144, size=size) for size in (0, 1, 7, 60, 400)]
    for rows in (*chosen, random.permutation(144), np.array([3, 3, 4, 6, 6])):
        taken = found.features[rows]
        assert taken.tobytes() == expected.features[rows].tobytes()
        assert taken.dtype == expected.features.dtype
    for part in (slice(None), slice(0), slice(10, 90), slice(None, None, 7), slice(140, 999)):
        assert found.features[part].tobytes() == expected.features[part].tobytes()


def test_a_choice_of_the_rows_of_an_array_copies_none_of_them() -> None:
    features, some = np.arange(12.0).reshape(6, 2), np.array([4, 0, 4])
    found = select_rows(features, some)
    features[4] = 7
    np.testing.assert_array_equal(found[:], [[7, 7], [0, 1], [7, 7]])
    np.testing.assert_array_equal(select_rows(found, np.array([1]))[:], [[0, 1]])
    assert (found.shape, found.dtype, found.nbytes) == ((3, 2), features.dtype, 48)


def test_shards_whose_features_are_not_in_one_piece_give_the_same_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    split = made(tmp_path / "a")
    expected = split.load().features
    monkeypatch.setattr(shard, "_place", lambda dataset, content: None)
    found, rows = stored_features(split).features, np.random.default_rng(0).permutation(144)[:50]
    assert found[rows].tobytes() == expected[rows].tobytes()


def test_nothing_but_the_rows_that_are_asked_for_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = stored_features(made(tmp_path / "a")).features
    sizes: list[int] = []

    class Counted(BufferedReader):
        def readinto(self, buffer: Any) -> int:
            sizes.append(len(buffer))
            return super().readinto(buffer)

    monkeypatch.setattr(Path, "open", lambda path, mode: Counted(FileIO(path)))
    found[np.array([100, 2, 101])]
    assert sizes == [32, 64]


def test_a_damaged_shard_is_refused_when_the_features_are_opened(tmp_path: Path) -> None:
    split = made(tmp_path / "a")
    path = split.path / "shard-00002.h5"
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    with pytest.raises(CacheError, match=r"shard-00002\.h5 has changed since it was written"):
        stored_features(split)


def test_a_shard_that_changes_or_goes_later_is_refused_when_a_row_of_it_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    split = made(tmp_path / "a")
    found, path = stored_features(split).features, split.path / "shard-00001.h5"

    class Broken(BufferedReader):
        def readinto(self, buffer: Any) -> int:
            raise OSError(5, "Input/output error")

    with monkeypatch.context() as patched:
        patched.setattr(Path, "open", lambda path, mode: Broken(FileIO(path)))
        with pytest.raises(StorageError, match=f"^cannot read {path}: Input/output error$"):
            found[50:51]
    os.utime(path, ns=(1, 1))
    assert found[:30].shape == (30, 16)  # of the first shard
    with pytest.raises(CacheError, match=f"^{path} has changed since this command verified it"):
        found[:60]
    path.unlink()
    with pytest.raises(CacheError, match=f"^{path} is missing$"):
        found[50:51]

"""Rows of somebody else's features become a cache, whole or after a kill."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from clinit.errors import CacheError, ClinitError
from clinit.extract.cache.read import CacheSplit, open_cache
from clinit.extract.work import import_features as module
from clinit.extract.work.import_features import import_features
from clinit.extract.work.options import ImportConfig
from clinit.headtrain.protocol.stream.source import read_source
from tests.conftest import unwritten
from tests.extract.work.made import files

Arrays = tuple[np.ndarray, np.ndarray]
ONES = np.ones((4, 2), np.float32)


@pytest.fixture
def arrays() -> Arrays:
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 4, size=50)
    return (np.eye(4, 6)[labels] + 0.1 * rng.normal(size=(50, 6))).astype(np.float16), labels


@pytest.fixture
def small_shards(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SHARD_ROWS", 7)


def imported(
    cache: Path, arrays: Arrays, *, backbone: str = "clip", report: Any = None, **settings: Any
) -> CacheSplit:
    """Save the arrays beside a cache and import them into it."""
    np.save(cache.parent / "features.npy", arrays[0])
    np.save(cache.parent / "labels.npy", arrays[1])
    if "classes" in settings:
        names = "\n".join(settings["classes"])
        settings["classes"] = cache.parent / "classes.txt"
        settings["classes"].write_text(names)
    features, labels = (cache.parent / f"{name}.npy" for name in ("features", "labels"))
    config = ImportConfig(backbone=backbone, **settings)
    return import_features(features, labels, cache, config, **(report or {}))


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_values_too_small_for_a_type_come_back_as_they_were_or_are_invalid(
    tmp_path: Path, dtype: str
) -> None:
    features = np.array([[3e-7, -2e-6], [1, 2], [0, 0]], dtype=dtype)
    split = imported(tmp_path / "c", (features, np.arange(3)))
    assert split.dtype == ("float16" if dtype == "float16" else "float32")
    np.testing.assert_array_equal(split.load().features, features.astype(split.dtype))
    tiny = np.array([[1.0, 1e-50], [1e-50, -1e-60], [0, 0], [0, 1e-30]])
    split = imported(tmp_path / "tiny", (tiny, np.zeros(4, int)))
    assert split.valid.tolist() == [True, False, True, True]
    wild = np.array([[1.0, np.nan], [1, 2], [1e300, 0], [0, 0]])
    assert imported(tmp_path / "wild", (wild, np.zeros(4, int))).valid.tolist() == [0, 1, 0, 1]
    assert split.load().features.tolist() == [[1, 0], [0, 0], [0, np.float32(1e-30)]]


WORDS = np.array(["a", "b", "c", "c"])
NUMBERS = np.zeros(3, dtype=np.int64)


@pytest.mark.parametrize(
    ("features", "labels", "settings", "fact"),
    [
        (np.zeros((3, 2), int), NUMBERS, {}, "expected floats"),
        (np.zeros(3), NUMBERS, {}, r"of shape \(3,\), expected floats"),
        (np.zeros((0, 2)), NUMBERS[:0], {}, r"shape \(0, 2\), expected floats"),
        (np.zeros((3, 2)), np.zeros(4, int), {}, r"of shape \(3,\)"),
        (np.zeros((3, 2)), np.zeros(3), {}, "expected integers or text"),
        (np.zeros((3, 2)), np.array([0, -1, 2]), {}, "labels from -1 to 2, expected 0 to 2"),
        (np.array([{}], dtype=object), NUMBERS, {}, "cannot read"),
        (ONES[:3], np.array([0, 1, 2**40]), {}, "1,099,511,627,776, but only 3 rows"),
        (ONES[:2], np.array([7, 2]), {}, "the label 7, but only 2 rows"),
        (ONES, np.arange(4), {"classes": "ab"}, "labels from 0 to 3, expected 0 to 1"),
        (ONES, WORDS, {"classes": "ax"}, "2 labels that are not among the 2 class names: b, c"),
        (ONES, np.array(["a", "b", "c", "x" * 4097]), {}, "text that is not a class name: 'xxx"),
        (ONES, np.array(["a", "b", "c", "\ud800"]), {}, "text that is not a class name"),
        (ONES, np.array(["a", "b", "c", "x"]), {"broken": True}, "label of invalid Unicode"),
    ],
)
def test_files_of_another_content_are_refused(
    tmp_path: Path, features: np.ndarray, labels: np.ndarray, settings: dict[str, Any], fact: str
) -> None:
    if settings.pop("broken", False):
        labels = labels.view(np.uint32).copy()
        labels[-1] = 0xFFFFFFFF
        labels = labels.view("<U1")
    with pytest.raises(ClinitError, match=fact) as caught:
        imported(tmp_path / "c", (features, labels), **settings)
    assert len(str(caught.value)) < 500
    assert not (tmp_path / "c").exists()


@pytest.mark.parametrize(
    ("labels", "settings", "fact"),
    [
        (WORDS[::-1], {"split": "train"}, "begun with other images, features or classes"),
        (WORDS, {"backbone": "dino"}, "backbone = clip, but this command has backbone = dino"),
        (np.array(["a", "b", "d", "e"]), {}, "this split has classes = a, b, d, e"),
        (WORDS, {"classes": "cba"}, "classes = a, b, c, but this split has classes = c, b, a"),
        (WORDS, {"classes": "abcd"}, "classes = a, b, c, but this split has classes = a, b, c, d"),
    ],
)
def test_what_does_not_fit_the_cache_is_refused(
    tmp_path: Path, labels: np.ndarray, settings: dict[str, Any], fact: str
) -> None:
    imported(tmp_path / "c", (ONES, WORDS))
    before = files(tmp_path / "c", without=".lock")
    with pytest.raises(CacheError, match=fact):
        imported(tmp_path / "c", (ONES, labels), **{"split": "val", **settings})
    assert files(tmp_path / "c", without=".lock") == before


@pytest.mark.parametrize(
    ("train", "val", "expected"),
    [
        (["a", "b", "c", "d"], ["d", "b", "d"], [1, 3, 3]),
        ([0, 1, 2, 3], [2, 0, 0], [0, 0, 2]),
        (list(range(9)), [7, 2], [2, 7]),
    ],
)
def test_a_val_split_of_fewer_classes_takes_the_list_of_train(
    tmp_path: Path, train: list[object], val: list[object], expected: list[int]
) -> None:
    imported(tmp_path / "c", (np.ones((len(train), 2), np.float32), np.array(train)))
    rows = np.arange(2 * len(val), dtype=np.float32).reshape(-1, 2)
    split = imported(tmp_path / "c", (rows, np.array(val)), split="val")
    assert split.class_names == tuple(map(str, train))
    assert split.labels.tolist() == expected
    origin = split.manifest.table["path"].cast(int).to_numpy()
    np.testing.assert_array_equal(split.load().features, rows[origin])
    assert [str(val[row]) for row in origin] == split.manifest.table["class_name"].to_list()
    source = read_source(tmp_path / "c")
    assert source.train.class_names == source.val.class_names


class Killed(BaseException):
    """Stands for a kill: nothing catches it."""


def killed_after(shards: int) -> dict[str, Callable[[int, int], None]]:
    def on_rows(done: int, total: int) -> None:
        if done >= min(7 * shards, total):
            raise Killed

    return {"on_rows": on_rows}


@pytest.mark.usefixtures("small_shards")
@pytest.mark.parametrize("shards", [1, 4, 8])
def test_a_killed_import_goes_on_and_ends_the_same(
    tmp_path: Path, arrays: Arrays, shards: int
) -> None:
    imported(tmp_path / "whole", arrays)
    with pytest.raises(Killed):
        imported(tmp_path / "c", arrays, report=killed_after(shards))
    leftover = tmp_path / "c" / "train" / ".shard-00003.h5.tmp-0123456789abcdef"
    leftover.write_bytes(b"half")
    with pytest.raises(CacheError, match=f"contains {min(shards, 8)} of 8 shards"):
        open_cache(tmp_path / "c")
    with unwritten(*(tmp_path / "c" / "train").glob("shard-*.h5")):
        imported(tmp_path / "c", arrays)
    assert files(tmp_path / "c") == files(tmp_path / "whole")


@pytest.mark.usefixtures("small_shards")
@pytest.mark.parametrize(
    ("name", "damage"),
    [
        ("plan.json", lambda path: None),
        ("shard-00002.h5", lambda path: path.write_bytes(path.read_bytes()[:-9])),
        ("shard-00005.h5", Path.unlink),
        ("manifest.parquet", lambda path: path.write_bytes(path.read_bytes()[:-9])),
        ("cache.json", lambda path: path.write_text(path.read_text().replace(": 50", ": 3"))),
    ],
)
def test_a_damaged_import_is_mended_by_its_command(
    tmp_path: Path, arrays: Arrays, name: str, damage: Callable[[Path], object]
) -> None:
    imported(tmp_path / "c", arrays)
    before = files(tmp_path / "c")
    damage(tmp_path / "c" / "train" / name)
    imported(tmp_path / "c", arrays)
    assert files(tmp_path / "c") == before

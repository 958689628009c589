from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from clinit.errors import CacheError, HeadError
from clinit.extract import import_features as module
from clinit.extract.cache import CacheSplit, open_cache
from clinit.extract.head import Head, write_head
from clinit.extract.import_features import ImportConfig, import_features

Written = tuple[Path, Path]


@pytest.fixture
def arrays() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 4, size=50)
    return (np.eye(4, 6)[labels] + 0.1 * rng.normal(size=(50, 6))).astype(np.float16), labels


def save(folder: Path, features: np.ndarray, labels: np.ndarray) -> Written:
    paths = folder / "features.npy", folder / "labels.npy"
    np.save(paths[0], features)
    np.save(paths[1], labels)
    return paths


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_rows_too_small_for_float16_come_back_as_they_were(tmp_path: Path, dtype: str) -> None:
    features = np.array([[3e-7, -2e-6], [1, 2], [0, 0]], dtype=dtype)
    split = import_features(*save(tmp_path, features, np.arange(3)), tmp_path / "c", ImportConfig())
    assert split.dtype == ("float16" if dtype == "float16" else "float32")
    np.testing.assert_array_equal(split.load().features, features.astype(split.dtype))


@pytest.mark.parametrize("dtype", ["float16", "float32"])
@pytest.mark.parametrize("shard_rows", [7, 50, 1000])
def test_rows_come_back_with_their_labels_in_their_own_type(
    tmp_path: Path,
    arrays: tuple[np.ndarray, np.ndarray],
    monkeypatch: pytest.MonkeyPatch,
    dtype: str,
    shard_rows: int,
) -> None:
    monkeypatch.setattr(module, "SHARD_ROWS", shard_rows)
    features, labels = arrays[0].astype(dtype), arrays[1]
    split = import_features(*save(tmp_path, features, labels), tmp_path / "c", ImportConfig())
    loaded = split.load()
    order = np.argsort(labels, kind="stable")
    assert loaded.features.dtype == dtype
    np.testing.assert_array_equal(loaded.features, features[order])
    np.testing.assert_array_equal(loaded.labels, labels[order])
    assert loaded.class_names == ("0", "1", "2", "3")
    assert split.manifest.table["path"].to_list() == [f"{row:02d}" for row in order]


def test_labels_of_text_are_class_names(
    tmp_path: Path, arrays: tuple[np.ndarray, np.ndarray]
) -> None:
    words = np.array(["cat", "ant", "dog", "bee"])[arrays[1]]
    split = import_features(*save(tmp_path, arrays[0], words), tmp_path / "c", ImportConfig())
    assert split.class_names == ("ant", "bee", "cat", "dog")
    assert split.manifest.table.group_by("class_name").len().sort("class_name")[
        "len"
    ].to_list() == [int((words == name).sum()) for name in ("ant", "bee", "cat", "dog")]


def test_a_file_of_class_names_may_name_classes_without_a_row(
    tmp_path: Path, arrays: tuple[np.ndarray, np.ndarray]
) -> None:
    names = tmp_path / "classes.txt"
    names.write_text("a\nb\nc\nd\ne\n")
    config = ImportConfig(classes=names, split="val")
    import_features(*save(tmp_path, *arrays), tmp_path / "c", config)
    assert open_cache(tmp_path / "c").split("val").class_names == tuple("abcde")


def test_a_head_is_stored_and_its_accuracy_told_for_both_splits(
    tmp_path: Path, arrays: tuple[np.ndarray, np.ndarray]
) -> None:
    head = tmp_path / "head.safetensors"
    write_head(Head(np.eye(4, 6), np.zeros(4), ("0", "1", "2", "3")), head)
    paths = save(tmp_path, *arrays)
    import_features(*paths, tmp_path / "c", ImportConfig(head=head))
    val = import_features(*paths, tmp_path / "c", ImportConfig(split="val"))
    cache = open_cache(tmp_path / "c")
    assert cache.head is not None
    assert cache.head.class_names == ("0", "1", "2", "3")
    assert cache.splits["train"].summary["head"]["top1_percent"] == 100
    assert val.summary["head"]["top1_percent"] == 100


def test_rows_that_are_not_finite_keep_their_place_and_are_invalid(
    tmp_path: Path, arrays: tuple[np.ndarray, np.ndarray]
) -> None:
    features = arrays[0].astype(np.float64)
    features[3, 0], features[9, 1] = np.nan, 1e300
    split = import_features(*save(tmp_path, features, arrays[1]), tmp_path / "c", ImportConfig())
    assert split.num_valid == 48
    invalid = split.manifest.table["path"].to_numpy()[~split.valid].tolist()
    assert sorted(invalid) == ["03", "09"]


@pytest.mark.parametrize(
    ("features", "labels", "message"),
    [
        (np.zeros((3, 2), dtype=np.int64), np.zeros(3, dtype=np.int64), "expected floats"),
        (np.zeros(3), np.zeros(3, dtype=np.int64), r"of shape \(3,\), expected floats"),
        (np.zeros((0, 2)), np.zeros(0, dtype=np.int64), r"shape \(0, 2\), expected floats"),
        (np.zeros((3, 2)), np.zeros(4, dtype=np.int64), r"of shape \(3,\)"),
        (np.zeros((3, 2)), np.zeros(3), "expected integers or text"),
        (np.zeros((3, 2)), np.array([0, -1, 2]), "labels from -1 to 2, expected 0 to 2"),
    ],
)
def test_files_of_another_content_are_refused(
    tmp_path: Path, features: np.ndarray, labels: np.ndarray, message: str
) -> None:
    with pytest.raises(CacheError, match=message):
        import_features(*save(tmp_path, features, labels), tmp_path / "c", ImportConfig())
    assert not (tmp_path / "c").exists()


def test_pickled_objects_are_not_read(tmp_path: Path) -> None:
    paths = save(tmp_path, np.array([{}], dtype=object), np.zeros(1, dtype=np.int64))
    with pytest.raises(CacheError, match="cannot read") as caught:
        import_features(*paths, tmp_path / "c", ImportConfig())
    assert "pickled" in caught.value.remedy


def test_labels_without_a_name_are_refused(
    tmp_path: Path, arrays: tuple[np.ndarray, np.ndarray]
) -> None:
    names = tmp_path / "classes.txt"
    names.write_text("a\nb\n")
    config = ImportConfig(classes=names)
    with pytest.raises(CacheError, match="labels from 0 to 3, expected 0 to 1"):
        import_features(*save(tmp_path, *arrays), tmp_path / "c", config)
    words = np.array(["a", "x", "b", "y"])[arrays[1]]
    with pytest.raises(CacheError, match="2 labels that are not among the 2 class names: x, y"):
        import_features(*save(tmp_path, arrays[0], words), tmp_path / "c", config)


def test_a_complete_split_is_not_written_again(
    tmp_path: Path, arrays: tuple[np.ndarray, np.ndarray]
) -> None:
    paths = save(tmp_path, *arrays)
    import_features(*paths, tmp_path / "c", ImportConfig())
    with pytest.raises(CacheError, match="holds a complete split already"):
        import_features(*paths, tmp_path / "c", ImportConfig())


def test_splits_of_different_extractors_are_not_mixed(
    tmp_path: Path, arrays: tuple[np.ndarray, np.ndarray]
) -> None:
    paths = save(tmp_path, *arrays)
    import_features(*paths, tmp_path / "c", ImportConfig(backbone="clip"))
    message = r"another backbone \(clip, 6 x float16\) than this import \(dino, 6 x float16\)"
    with pytest.raises(CacheError, match=message):
        import_features(*paths, tmp_path / "c", ImportConfig(backbone="dino", split="val"))


def test_a_head_of_another_width_is_refused(
    tmp_path: Path, arrays: tuple[np.ndarray, np.ndarray]
) -> None:
    head = tmp_path / "head.safetensors"
    write_head(Head(np.eye(4, 5), np.zeros(4)), head)
    with pytest.raises(HeadError, match="features of width 5, these have width 6"):
        import_features(*save(tmp_path, *arrays), tmp_path / "c", ImportConfig(head=head))


def import_with_head(folder: Path, head: Head, split: str = "train") -> CacheSplit:
    labels = np.arange(12) % 4
    paths = save(folder, np.eye(4, 6, dtype=np.float32)[labels], labels)
    write_head(head, folder / "head.safetensors")
    config = ImportConfig(split=split, head=folder / "head.safetensors")
    return import_features(*paths, folder / "c", config)


def test_a_head_without_names_takes_those_of_the_classes(tmp_path: Path) -> None:
    split = import_with_head(tmp_path, Head(np.eye(4, 6), np.zeros(4)))
    head = open_cache(tmp_path / "c").head
    assert head is not None
    assert head.class_names == ("0", "1", "2", "3")
    assert split.summary["head"]["top1_percent"] == 100


def test_a_second_head_is_refused(tmp_path: Path) -> None:
    import_with_head(tmp_path, Head(np.eye(4, 6), np.zeros(4)))
    import_with_head(tmp_path, Head(np.eye(4, 6), np.zeros(4)), "val")
    (tmp_path / "c" / "val" / "cache.json").unlink()
    with pytest.raises(HeadError, match="holds another head than the one given"):
        import_with_head(tmp_path, Head(2 * np.eye(4, 6), np.zeros(4)), "val")


def test_a_label_beyond_the_number_of_rows_is_refused(tmp_path: Path) -> None:
    paths = save(tmp_path, np.ones((3, 2), np.float32), np.array([0, 1, 2**40]))
    with pytest.raises(CacheError, match=r"holds the label 1,099,511,627,776, but only 3 rows"):
        import_features(*paths, tmp_path / "c", ImportConfig())


def test_a_split_of_other_classes_is_refused(tmp_path: Path) -> None:
    features = np.ones((4, 2), np.float32)
    paths = save(tmp_path, features, np.array(["a", "b", "c", "c"]))
    import_features(*paths, tmp_path / "c", ImportConfig())
    paths = save(tmp_path, features, np.array(["a", "b", "b", "b"]))
    with pytest.raises(CacheError, match="the classes of this split are not those of") as caught:
        import_features(*paths, tmp_path / "c", ImportConfig(split="val"))
    assert "--classes FILE" in caught.value.remedy

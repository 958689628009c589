from __future__ import annotations

import errno
import fcntl
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from clinit.errors import CacheError, ClinitError, HeadError
from clinit.extract.arrays import import_features as module
from clinit.extract.arrays.import_features import ImportConfig, import_features
from clinit.extract.cache.fingerprint import Fingerprint
from clinit.extract.cache.head import Head, write_head
from clinit.extract.cache.plan import Plan, settle_plan
from clinit.extract.cache.read import CacheSplit, open_cache
from clinit.files.lock import claim_folder
from clinit.headtrain.stream.source import read_source

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
    files, config = save(tmp_path, features, np.arange(3)), ImportConfig(backbone="clip")
    split = import_features(*files, tmp_path / "c", config)
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
    split = import_features(
        *save(tmp_path, features, labels), tmp_path / "c", ImportConfig(backbone="clip")
    )
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
    split = import_features(
        *save(tmp_path, arrays[0], words), tmp_path / "c", ImportConfig(backbone="clip")
    )
    assert split.class_names == ("ant", "bee", "cat", "dog")
    assert split.manifest.table.group_by("class_name").len().sort("class_name")[
        "len"
    ].to_list() == [int((words == name).sum()) for name in ("ant", "bee", "cat", "dog")]


def test_a_file_of_class_names_may_name_classes_without_a_row(
    tmp_path: Path, arrays: tuple[np.ndarray, np.ndarray]
) -> None:
    names = tmp_path / "classes.txt"
    names.write_text("a\nb\nc\nd\ne\n")
    config = ImportConfig(backbone="clip", classes=names, split="val")
    import_features(*save(tmp_path, *arrays), tmp_path / "c", config)
    assert open_cache(tmp_path / "c").split("val").class_names == tuple("abcde")


def test_a_head_is_stored_and_its_accuracy_told_for_both_splits(
    tmp_path: Path, arrays: tuple[np.ndarray, np.ndarray]
) -> None:
    head = tmp_path / "head.safetensors"
    write_head(Head(np.eye(4, 6), np.zeros(4), ("0", "1", "2", "3")), head)
    paths = save(tmp_path, *arrays)
    import_features(*paths, tmp_path / "c", ImportConfig(backbone="clip", head=head))
    val = import_features(*paths, tmp_path / "c", ImportConfig(backbone="clip", split="val"))
    cache = open_cache(tmp_path / "c")
    assert cache.head is not None
    assert cache.head.class_names == ("0", "1", "2", "3")
    assert cache.splits["train"].summary.head.top1.percent == 100
    assert val.summary.head.top1.percent == 100


def test_rows_that_are_not_finite_keep_their_place_and_are_invalid(
    tmp_path: Path, arrays: tuple[np.ndarray, np.ndarray]
) -> None:
    features = arrays[0].astype(np.float64)
    features[3, 0], features[9, 1] = np.nan, 1e300
    split = import_features(
        *save(tmp_path, features, arrays[1]), tmp_path / "c", ImportConfig(backbone="clip")
    )
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
        import_features(
            *save(tmp_path, features, labels), tmp_path / "c", ImportConfig(backbone="clip")
        )
    assert not (tmp_path / "c").exists()


def test_pickled_objects_are_not_read(tmp_path: Path) -> None:
    paths = save(tmp_path, np.array([{}], dtype=object), np.zeros(1, dtype=np.int64))
    with pytest.raises(CacheError, match="cannot read") as caught:
        import_features(*paths, tmp_path / "c", ImportConfig(backbone="clip"))
    assert "pickled" in caught.value.remedy


def test_labels_without_a_name_are_refused(
    tmp_path: Path, arrays: tuple[np.ndarray, np.ndarray]
) -> None:
    names = tmp_path / "classes.txt"
    names.write_text("a\nb\n")
    config = ImportConfig(backbone="clip", classes=names)
    with pytest.raises(CacheError, match="labels from 0 to 3, expected 0 to 1"):
        import_features(*save(tmp_path, *arrays), tmp_path / "c", config)
    words = np.array(["a", "x", "b", "y"])[arrays[1]]
    with pytest.raises(CacheError, match="2 labels that are not among the 2 class names: x, y"):
        import_features(*save(tmp_path, arrays[0], words), tmp_path / "c", config)


def test_a_complete_split_is_not_written_again(
    tmp_path: Path, arrays: tuple[np.ndarray, np.ndarray]
) -> None:
    paths = save(tmp_path, *arrays)
    import_features(*paths, tmp_path / "c", ImportConfig(backbone="clip"))
    with pytest.raises(CacheError, match="holds a complete split already"):
        import_features(*paths, tmp_path / "c", ImportConfig(backbone="clip"))


def test_splits_of_different_extractors_are_not_mixed(
    tmp_path: Path, arrays: tuple[np.ndarray, np.ndarray]
) -> None:
    paths = save(tmp_path, *arrays)
    import_features(*paths, tmp_path / "c", ImportConfig(backbone="clip"))
    message = r"another backbone \(clip, 6 x float16\) than this split \(dino, 6 x float16\)"
    with pytest.raises(CacheError, match=message):
        import_features(*paths, tmp_path / "c", ImportConfig(backbone="dino", split="val"))


def test_a_head_of_another_width_is_refused(
    tmp_path: Path, arrays: tuple[np.ndarray, np.ndarray]
) -> None:
    head = tmp_path / "head.safetensors"
    write_head(Head(np.eye(4, 5), np.zeros(4)), head)
    with pytest.raises(HeadError, match="features of width 5, these have width 6"):
        import_features(
            *save(tmp_path, *arrays), tmp_path / "c", ImportConfig(backbone="clip", head=head)
        )


def import_with_head(folder: Path, head: Head, split: str = "train") -> CacheSplit:
    labels = np.arange(12) % 4
    paths = save(folder, np.eye(4, 6, dtype=np.float32)[labels], labels)
    write_head(head, folder / "head.safetensors")
    config = ImportConfig(backbone="clip", split=split, head=folder / "head.safetensors")
    return import_features(*paths, folder / "c", config)


def test_a_head_without_names_takes_those_of_the_classes(tmp_path: Path) -> None:
    split = import_with_head(tmp_path, Head(np.eye(4, 6), np.zeros(4)))
    head = open_cache(tmp_path / "c").head
    assert head is not None
    assert head.class_names == ("0", "1", "2", "3")
    assert split.summary.head.top1.percent == 100


def test_a_second_head_is_refused(tmp_path: Path) -> None:
    import_with_head(tmp_path, Head(np.eye(4, 6), np.zeros(4)))
    import_with_head(tmp_path, Head(np.eye(4, 6), np.zeros(4)), "val")
    (tmp_path / "c" / "val" / "cache.json").unlink()
    with pytest.raises(HeadError, match="holds another head than the one given"):
        import_with_head(tmp_path, Head(2 * np.eye(4, 6), np.zeros(4)), "val")


def test_a_label_beyond_the_number_of_rows_is_refused(tmp_path: Path) -> None:
    paths = save(tmp_path, np.ones((3, 2), np.float32), np.array([0, 1, 2**40]))
    with pytest.raises(CacheError, match=r"holds the label 1,099,511,627,776, but only 3 rows"):
        import_features(*paths, tmp_path / "c", ImportConfig(backbone="clip"))


def test_a_split_of_other_classes_is_refused(tmp_path: Path) -> None:
    features = np.ones((4, 2), np.float32)
    paths = save(tmp_path, features, np.array(["a", "b", "c", "c"]))
    import_features(*paths, tmp_path / "c", ImportConfig(backbone="clip"))
    paths = save(tmp_path, features, np.array(["a", "b", "d", "e"]))
    with pytest.raises(CacheError, match="the classes of this split are not those of") as caught:
        import_features(*paths, tmp_path / "c", ImportConfig(backbone="clip", split="val"))
    assert str(caught.value).endswith("train: 2 are here alone (d, e), 1 is there alone (c)")
    assert "--classes FILE" in caught.value.remedy


@pytest.mark.parametrize(
    ("train", "val", "expected"),
    [
        (["a", "b", "c", "d"], ["d", "b", "d"], [1, 3, 3]),
        ([0, 1, 2, 3], [2, 0, 0], [0, 0, 2]),
    ],
)
def test_a_val_split_of_fewer_classes_takes_the_list_of_train(
    tmp_path: Path, train: list[object], val: list[object], expected: list[int]
) -> None:
    paths = save(tmp_path, np.ones((len(train), 2), np.float32), np.array(train))
    import_features(*paths, tmp_path / "c", ImportConfig(backbone="clip"))
    rows = np.arange(2 * len(val), dtype=np.float32).reshape(-1, 2)
    paths = save(tmp_path, rows, np.array(val))
    split = import_features(*paths, tmp_path / "c", ImportConfig(backbone="clip", split="val"))
    assert split.class_names == tuple(map(str, train))
    assert split.labels.tolist() == expected
    origin = split.manifest.table["path"].cast(int).to_numpy()
    np.testing.assert_array_equal(split.load().features, rows[origin])
    assert [str(val[row]) for row in origin] == split.manifest.table["class_name"].to_list()
    source = read_source(tmp_path / "c")
    assert source.train.class_names == source.val.class_names


def test_the_same_classes_in_another_order_are_refused_by_the_first(tmp_path: Path) -> None:
    paths = save(tmp_path, np.ones((2, 2), np.float32), np.array([0, 1]))
    for split, names in (("train", "a\nb\n"), ("val", "b\na\n")):
        (tmp_path / split).write_text(names)
    config = ImportConfig(backbone="clip", classes=tmp_path / "train")
    import_features(*paths, tmp_path / "c", config)
    other = ImportConfig(backbone="clip", split="val", classes=tmp_path / "val")
    with pytest.raises(CacheError, match="class 0 is b here, a there"):
        import_features(*paths, tmp_path / "c", other)


def files(folder: Path) -> dict[str, bytes]:
    """Everything in a cache but what tells of the run itself."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name not in ("cache.json", ".lock")
    }


class Killed(BaseException):
    """Stands for a kill: nothing catches it."""


def killed_after(shards: int) -> Callable[[int, int], None]:
    def on_rows(done: int, total: int) -> None:
        if done >= min(7 * shards, total):
            raise Killed

    return on_rows


@pytest.mark.parametrize("shards", [1, 4, 8])
def test_a_killed_import_goes_on_and_ends_the_same(
    tmp_path: Path,
    arrays: tuple[np.ndarray, np.ndarray],
    monkeypatch: pytest.MonkeyPatch,
    shards: int,
) -> None:
    monkeypatch.setattr(module, "SHARD_ROWS", 7)
    paths, config = save(tmp_path, *arrays), ImportConfig(backbone="clip")
    import_features(*paths, tmp_path / "whole", config)
    with pytest.raises(Killed):
        import_features(*paths, tmp_path / "c", config, on_rows=killed_after(shards))
    leftover = tmp_path / "c" / "train" / ".shard-00003.h5.tmp-0123456789abcdef"
    leftover.write_bytes(b"half")
    with pytest.raises(CacheError, match=f"holds {min(shards, 8)} of 8 shards"):
        open_cache(tmp_path / "c")
    before = {p: p.stat().st_ino for p in (tmp_path / "c" / "train").glob("shard-*.h5")}
    import_features(*paths, tmp_path / "c", config)
    assert {p: p.stat().st_ino for p in before} == before, "what is there is not written again"
    assert files(tmp_path / "c") == files(tmp_path / "whole")


def test_a_killed_import_of_another_file_begins_anew(
    tmp_path: Path, arrays: tuple[np.ndarray, np.ndarray], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "SHARD_ROWS", 7)
    config = ImportConfig(backbone="clip")
    paths = save(tmp_path, *arrays)
    with pytest.raises(Killed):
        import_features(*paths, tmp_path / "c", config, on_rows=killed_after(3))
    # Mended since: fewer rows, other numbers.
    paths = save(tmp_path, 2 * arrays[0][:20], arrays[1][:20])
    split = import_features(*paths, tmp_path / "c", config)
    import_features(*paths, tmp_path / "whole", config)
    assert files(tmp_path / "c") == files(tmp_path / "whole")
    order = np.argsort(arrays[1][:20], kind="stable")
    np.testing.assert_array_equal(split.load().features, 2 * arrays[0][:20][order])


def test_what_an_extraction_has_left_unfinished_is_not_removed(
    tmp_path: Path, arrays: tuple[np.ndarray, np.ndarray]
) -> None:
    folder = tmp_path / "c" / "train"
    plan = Plan(
        dataset="imagenet1k",
        split="train",
        num_rows=50,
        dim=6,
        dtype="float16",
        shard_rows=7,
        batch_size=7,
        fingerprint=Fingerprint({"backbone": "clip", "weights": "1", "manifest": "2"}),
    )
    settle_plan(plan, folder)
    (folder / "shard-00000.h5").write_bytes(b"hours of work")
    with pytest.raises(
        CacheError, match="was begun with weights = 1, this command has weights = n"
    ):
        import_features(*save(tmp_path, *arrays), tmp_path / "c", ImportConfig(backbone="clip"))
    assert (folder / "shard-00000.h5").read_bytes() == b"hours of work"


def test_a_damaged_import_is_mended_by_its_command(
    tmp_path: Path, arrays: tuple[np.ndarray, np.ndarray], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "SHARD_ROWS", 7)
    paths, config = save(tmp_path, *arrays), ImportConfig(backbone="clip")
    import_features(*paths, tmp_path / "c", config)
    before = files(tmp_path / "c")
    for name, damage in (
        ("shard-00002.h5", lambda path: path.write_bytes(path.read_bytes()[:-9])),
        ("shard-00005.h5", Path.unlink),
        ("manifest.parquet", lambda path: path.write_bytes(path.read_bytes()[:-9])),
        ("cache.json", lambda path: path.write_text(path.read_text().replace(": 50", ": 3"))),
    ):
        damage(tmp_path / "c" / "train" / name)
        import_features(*paths, tmp_path / "c", config)
        assert files(tmp_path / "c") == before
    with pytest.raises(CacheError, match="holds a complete split already"):
        import_features(*paths, tmp_path / "c", config)


def test_a_damaged_head_is_written_again_by_the_import(tmp_path: Path) -> None:
    import_with_head(tmp_path, Head(np.eye(4, 6), np.zeros(4)))
    stored = tmp_path / "c" / "head.safetensors"
    before = stored.read_bytes()
    stored.write_bytes(before[:-1] + b"\x01")
    with pytest.raises(HeadError, match="has changed since it was written"):
        open_cache(tmp_path / "c")
    import_with_head(tmp_path, Head(np.eye(4, 6), np.zeros(4)))
    assert stored.read_bytes() == before


def test_another_head_is_refused_even_where_the_first_is_damaged_or_missing(tmp_path: Path) -> None:
    import_with_head(tmp_path, Head(np.eye(4, 6), np.zeros(4)))
    stored = tmp_path / "c" / "head.safetensors"
    stored.write_bytes(stored.read_bytes()[:-1] + b"\x01")
    for _ in range(2):
        with pytest.raises(HeadError, match="holds another head than the one given"):
            import_with_head(tmp_path, Head(2 * np.eye(4, 6), np.zeros(4)), "val")
        stored.unlink(missing_ok=True)
    paths = tmp_path / "features.npy", tmp_path / "labels.npy"
    with pytest.raises(
        HeadError, match=r"that was stored with the features in .*, is missing"
    ) as e:
        import_features(*paths, tmp_path / "c", ImportConfig(backbone="clip", split="val"))
    assert e.value.remedy == "Give it with `--head FILE`."


@pytest.mark.parametrize("text", ["x" * 4097, "\ud800"])
def test_a_label_that_is_no_name_is_refused(
    tmp_path: Path, arrays: tuple[np.ndarray, np.ndarray], text: str
) -> None:
    words = np.array(["a", text])[arrays[1] % 2]
    with pytest.raises(CacheError, match="holds what is no class name: '") as caught:
        import_features(
            *save(tmp_path, arrays[0], words), tmp_path / "c", ImportConfig(backbone="clip")
        )
    assert len(str(caught.value)) < 300


def test_a_label_of_numbers_that_are_no_characters_is_refused(
    tmp_path: Path, arrays: tuple[np.ndarray, np.ndarray]
) -> None:
    paths = save(tmp_path, arrays[0], np.array(["a", "b"])[arrays[1] % 2])
    paths[1].write_bytes(paths[1].read_bytes()[:-4] + b"\xff\xff\xff\xff")
    with pytest.raises(CacheError, match="holds what is no class name: the character 0xffffffff"):
        import_features(*paths, tmp_path / "c", ImportConfig(backbone="clip"))


def test_a_small_split_need_not_have_rows_of_all_classes(tmp_path: Path) -> None:
    features, labels = np.ones((9, 2), np.float32), np.arange(9)
    import_features(*save(tmp_path, features, labels), tmp_path / "c", ImportConfig(backbone="x"))
    val = save(tmp_path, features[:2], np.array([7, 2]))
    config = ImportConfig(backbone="x", split="val")
    written = import_features(*val, tmp_path / "c", config)
    assert (written.labels.tolist(), written.class_names) == ([2, 7], tuple(map(str, range(9))))
    with pytest.raises(CacheError, match=r"labels\.npy holds the label 7, but only 2 rows"):
        import_features(*val, tmp_path / "alone", config)


def test_rows_too_small_for_float32_do_not_become_zeros(tmp_path: Path) -> None:
    features = np.array([[1.0, 1e-50], [1e-50, -1e-60], [0, 0], [0, 1e-30]])
    paths = save(tmp_path, features, np.zeros(4, int))
    written = import_features(*paths, tmp_path / "c", ImportConfig(backbone="x"))
    found = written.load()
    assert written.num_valid == 3
    assert found.features.tolist() == [[1, 0], [0, 0], [0, np.float32(1e-30)]]


def test_one_import_at_a_time_writes_a_cache(
    tmp_path: Path, arrays: tuple[np.ndarray, np.ndarray]
) -> None:
    paths, cache = save(tmp_path, *arrays), tmp_path / "c"
    with claim_folder(cache), pytest.raises(ClinitError, match="another process is writing"):
        import_features(*paths, cache, ImportConfig(backbone="clip", split="val"))
    assert not (cache / "val").exists()
    assert import_features(*paths, cache, ImportConfig(backbone="clip")).num_rows == len(arrays[1])


def test_storage_that_cannot_lock_is_told_of_and_serves(
    tmp_path: Path, arrays: tuple[np.ndarray, np.ndarray], monkeypatch: pytest.MonkeyPatch
) -> None:
    def flock(descriptor: int, operation: int) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", flock)
    told: list[str] = []
    paths = save(tmp_path, *arrays)
    config = ImportConfig(backbone="clip")
    assert import_features(*paths, tmp_path / "c", config, on_note=told.append).load().dim == 6
    assert told == [
        f"the storage of {tmp_path / 'c'} cannot lock files (No locks available): do not"
        " run two commands on it at a time"
    ]

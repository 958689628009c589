import json
import os
from pathlib import Path

import pytest

from clinit.errors import CacheError, ManifestError
from clinit.extract.dataset.scan import Scan, available_splits, scan
from tests.extract.dataset.made import make_tar


def shard(path: Path, *samples: tuple[str, str]) -> Path:
    """Write a shard of `key.jpg` and `key.cls`; a label of nothing is not written."""
    members = [(f"{key}.jpg", b"x" * 9) for key, _ in samples]
    return make_tar(path, [*members, *((f"{k}.cls", v.encode()) for k, v in samples if v)])


def rows(scanned: Scan) -> list[tuple[str, int, str]]:
    return scanned.manifest.table.select("path", "label", "class_name").rows()


def read(root: Path, split: str = "train", *, strict: bool = False) -> Scan:
    return scan("webdataset", root, split, strict=strict)


def test_rows_stand_in_the_order_of_the_shards(tmp_path: Path) -> None:
    shard(tmp_path / "train-1.tar", ("c", "0"), ("b", "1"))
    shard(tmp_path / "train-0.tar", ("d", "1"))
    shard(tmp_path / "val-0.tar", ("e", "2"))
    scanned = read(tmp_path)
    assert rows(scanned) == [
        ("train-0.tar/d.jpg", 1, "1"),
        ("train-1.tar/c.jpg", 0, "0"),
        ("train-1.tar/b.jpg", 1, "1"),
    ]
    assert scanned.layout == "webdataset"
    assert scanned.warnings == ("1 of 3 classes have no image in train (for example 2)",)
    assert rows(read(tmp_path, "val")) == [("val-0.tar/e.jpg", 2, "2")]
    assert available_splits("webdataset", tmp_path) == ("train", "val")


def test_class_names_are_those_of_all_splits_sorted(tmp_path: Path) -> None:
    shard(tmp_path / "train" / "0.tar", ("c", "bee"))
    shard(tmp_path / "val" / "0.tar", ("e", "ant"))
    assert rows(read(tmp_path)) == [("train/0.tar/c.jpg", 1, "bee")]


@pytest.mark.parametrize("name", ["classnames.txt", "class_names.txt", "classes.txt"])
def test_a_file_names_the_classes(tmp_path: Path, name: str) -> None:
    shard(tmp_path / "0.tar", ("c", "1"), ("d", "bee"))
    (tmp_path / name).write_text("ant\nwasp\nbee\n")
    assert rows(read(tmp_path)) == [("0.tar/c.jpg", 1, "wasp"), ("0.tar/d.jpg", 2, "bee")]


def test_a_file_that_names_a_class_twice_is_refused(tmp_path: Path) -> None:
    shard(tmp_path / "0.tar", ("c", "1"))
    (tmp_path / "classnames.txt").write_text("ant\nant\n")
    with pytest.raises(CacheError, match=r"a name occurs twice in .*classnames\.txt"):
        read(tmp_path)


def test_a_label_beyond_the_named_classes_is_refused(tmp_path: Path) -> None:
    shard(tmp_path / "0.tar", ("c", "2"))
    (tmp_path / "classnames.txt").write_text("ant\nbee\n")
    with pytest.raises(ManifestError, match=r"a label of 0\.tar is 2, but labels must lie in"):
        read(tmp_path)


@pytest.mark.parametrize("name", ["_info.json", "info.json"])
def test_counts_are_compared_with_the_description(tmp_path: Path, name: str) -> None:
    shard(tmp_path / "imagenet-validation-0.tar", ("c", "0"))
    told = {"splits": {"validation": {"num_samples": 3, "filenames": []}}}
    (tmp_path / name).write_text(json.dumps(told))
    assert read(tmp_path, "val").warnings == ("1 images in val, expected 3 (2 missing)",)
    with pytest.raises(ManifestError, match=r"not a complete val split of webdataset: 1 images"):
        read(tmp_path, "val", strict=True)


def test_what_is_left_out_is_told(tmp_path: Path) -> None:
    path = shard(tmp_path / "train-0.tar", ("c", "0"), ("d", ""), ("e", "-1"))
    shard(tmp_path / "other.tar", ("c", "0"))
    make_tar(
        tmp_path / "train-1.tar", [("f.png", b"1"), ("f.jpg", b"2"), ("f.cls", b"0"), ("x", b"")]
    )
    (tmp_path / "boxes.tar.gz").touch()
    path.write_bytes(path.read_bytes()[: 512 * 10])
    scanned = read(tmp_path)
    assert rows(scanned) == [("train-0.tar/c.jpg", 0, "0"), ("train-1.tar/f.png", 0, "0")]
    assert scanned.warnings == (
        "other.tar was left out: no part of its path names a split",
        "compressed files left out: 1 (for example boxes.tar.gz)",
        "members left out, of no sample with an image: 1 (for example train-1.tar/x)",
        "images left out, of samples with an earlier one: 1 (for example train-1.tar/f.jpg)",
        "shards without the mark of their end, which may be cut off: 1 (for example train-0.tar)",
        "images left out, without a label: 2 (for example train-0.tar/d.jpg)",
    )


def test_compressed_shards_alone_are_refused(tmp_path: Path) -> None:
    (tmp_path / "train-0.TAR.GZ").touch()
    with pytest.raises(ManifestError, match=r"train-0\.TAR\.GZ is compressed \(GZ\)") as caught:
        read(tmp_path)
    assert "`gunzip`" in caught.value.remedy


def test_shards_without_labels_are_refused(tmp_path: Path) -> None:
    shard(tmp_path / "train-0.tar", ("c", ""))
    with pytest.raises(ManifestError, match="images left out, without a label: 1") as caught:
        read(tmp_path)
    assert "key.cls" in caught.value.remedy


def test_a_member_that_leads_out_of_its_shard_is_refused(tmp_path: Path) -> None:
    shard(tmp_path / "0.tar", ("../../c", "0"))
    with pytest.raises(ManifestError, match=r"the image '0\.tar/\.\./\.\./c\.jpg' leads out"):
        read(tmp_path)


def test_a_folder_without_shards_says_what_was_looked_for(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").touch()
    with pytest.raises(ManifestError) as caught:
        read(tmp_path)
    assert "no train split of webdataset" in str(caught.value)
    assert "webdataset: no .tar file of train; and found notes.txt" in str(caught.value)
    assert caught.value.remedy.startswith("Give a folder with .tar files whose names")


def test_class_folders_are_not_found_where_shards_lie(tmp_path: Path) -> None:
    shard(tmp_path / "train-0.tar", ("c", "0"))
    with pytest.raises(ManifestError, match=r"and found train-0\.tar") as caught:
        scan("folder", tmp_path, "train")
    assert "reads tar shards as `webdataset`" in caught.value.remedy
    (tmp_path / "data").mkdir()
    shard(tmp_path / "data" / "train-0.tar", ("c", "0"))
    with pytest.raises(ManifestError, match="hold no image; files left out") as caught:
        scan("folder", tmp_path, "train")
    assert "or read tar shards as `webdataset`, Parquet" in caught.value.remedy


def test_a_link_to_a_shard_may_not_leave_the_root(tmp_path: Path) -> None:
    shard(tmp_path / "0.tar", ("c", "0"))
    (tmp_path / "root").mkdir()
    (tmp_path / "root" / "0.tar").symlink_to(tmp_path / "0.tar")
    with pytest.raises(ManifestError, match=r"0\.tar is a link to .* outside of the root"):
        read(tmp_path / "root")


def test_a_link_to_nothing_is_told(tmp_path: Path) -> None:
    (tmp_path / "0.tar").symlink_to(tmp_path / "absent.tar")
    with pytest.raises(ManifestError, match=r"cannot read .*0\.tar: No such file"):
        read(tmp_path)


def test_a_shard_that_changes_is_indexed_again(tmp_path: Path) -> None:
    path = shard(tmp_path / "0.tar", ("c", "0"))
    read(tmp_path)
    shard(path, ("d", "0"))
    os.utime(path, (1, 1))
    assert rows(read(tmp_path)) == [("0.tar/d.jpg", 0, "0")]


def test_a_shard_under_two_names_is_refused(tmp_path: Path) -> None:
    shard(tmp_path / "train-0.tar", ("c", "1"))
    (tmp_path / "train-1.tar").symlink_to("train-0.tar")
    with pytest.raises(
        ManifestError, match=r"train-0\.tar and train-1\.tar in .* are links to one"
    ):
        read(tmp_path)


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "train.tar")
    with pytest.raises(ManifestError, match=r"train\.tar: it is a device or a pipe"):
        read(tmp_path)


def test_the_splits_are_told_without_a_look_into_the_shards(tmp_path: Path) -> None:
    for name in ("train.tar", "val.tar"):
        os.mkfifo(tmp_path / name)
    assert available_splits("webdataset", tmp_path) == ("train", "val")

"""Data sets in tar shards and Parquet files, scanned as a whole."""

import os
import re
from collections.abc import Callable
from pathlib import Path

import polars as pl
import pytest

from clinit.errors import ClinitError, ManifestError
from clinit.extract.dataset.scan import Scan, available_splits, scan
from tests.extract.dataset.made import make_parquet, make_tar

KINDS = ("webdataset", "huggingface")


def shard(path: Path, *samples: tuple[str, str]) -> Path:
    """Write a shard of `key.jpg` and `key.cls`; a label of nothing is not written."""
    members = [(f"{key}.jpg", b"x" * 9) for key, _ in samples]
    return make_tar(path, [*members, *((f"{k}.cls", v.encode()) for k, v in samples if v)])


def write(kind: str, root: Path, name: str, *labels: str) -> Path:
    """Write images 0, 1, ... of these classes into a container; return its path."""
    if kind == "webdataset":
        return shard(root / f"{name}.tar", *((str(i), label) for i, label in enumerate(labels)))
    told = pl.Series([label or None for label in labels], dtype=pl.String)
    return make_parquet(root / f"{name}.parquet", [b"x" * 9] * len(labels), told)


def rows(scanned: Scan) -> list[tuple[str, int, str]]:
    """Return the rows without the endings of containers and images."""
    table = scanned.manifest.table.select("path", "label", "class_name")
    ends = re.compile(r"\.(tar|parquet|jpg|png)")
    return [(ends.sub("", path), label, name) for path, label, name in table.iter_rows()]


def huggingface(root: Path) -> Scan:
    return scan("huggingface", root, "train")


@pytest.mark.parametrize("kind", KINDS)
def test_rows_stand_in_the_order_of_the_containers(tmp_path: Path, kind: str) -> None:
    write(kind, tmp_path, "data/train-1", "cat", "bee")
    path = write(kind, tmp_path, "data/train-0", "bee")
    write(kind, tmp_path, "data/test-0", "ant")
    scanned = scan(kind, tmp_path, "train")
    assert rows(scanned) == [
        ("data/train-0/0", 1, "bee"),
        ("data/train-1/0", 2, "cat"),
        ("data/train-1/1", 1, "bee"),
    ]
    assert scanned.layout == kind
    assert scanned.manifest.table["container_bytes"][0] == path.stat().st_size
    assert scanned.warnings == ("1 of 3 classes have no image in train (for example ant)",)
    assert rows(scan(kind, tmp_path, "val")) == [("data/test-0/0", 0, "ant")]
    assert available_splits(kind, tmp_path) == ("train", "val")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["classnames.txt", "class_names.txt", "classes.txt"])
def test_a_file_names_the_classes(tmp_path: Path, kind: str, name: str) -> None:
    write(kind, tmp_path, "0", "bee", "ant")
    (tmp_path / name).write_text("ant\nwasp\nbee\n")
    assert rows(scan(kind, tmp_path, "train")) == [("0/0", 2, "bee"), ("0/1", 0, "ant")]


@pytest.mark.parametrize(("count", "end"), [(9, "txt"), (10, "txt"), (10, "cls")])
def test_texts_that_are_captions_are_told(tmp_path: Path, count: int, end: str) -> None:
    labels = [(f"{i}.{end}", b"photo %d" % i) for i in range(count)]
    make_tar(tmp_path / "0.tar", [*labels, *((f"{i}.jpe", b"x") for i in range(count))])
    told = " ".join(scan("webdataset", tmp_path, "train").warnings)
    assert ("look like captions" in told) == ((count, end) == (10, "txt"))


def test_what_is_left_out_is_told(tmp_path: Path) -> None:
    shard(tmp_path / "train-0.tar", ("x", "0"))
    scan("webdataset", tmp_path, "train")  # which must not be taken for the shard that comes
    path = shard(tmp_path / "train-0.tar", ("c", "0"), ("d", ""), ("e", "-1"))
    shard(tmp_path / "other.tar", ("c", "0"))
    members = [("f.png", b"1"), ("f.jpg", b"2"), ("f.cls", b"0"), ("x", b"")]
    make_tar(tmp_path / "train-1.tar", members)
    path.write_bytes(path.read_bytes()[: 512 * 10])
    scanned = scan("webdataset", tmp_path, "train")
    assert rows(scanned) == [("train-0/c", 0, "0"), ("train-1/f", 0, "0")]
    assert scanned.warnings == (
        "other.tar was left out: no part of its path names a split",
        "members left out, not part of a sample with an image: 1 (for example train-1.tar/x)",
        "images left out, because their sample already has an image: 1 (for example"
        " train-1.tar/f.jpg)",
        "shards without an end mark, perhaps truncated: 1 (for example train-0.tar)",
        "images left out, without a label: 2 (for example train-0.tar/d.jpg)",
    )


def test_a_download_of_the_hub_is_its_one_revision(tmp_path: Path) -> None:
    root = tmp_path / "datasets--me--ants"
    (root / "blobs").mkdir(parents=True)
    make_parquet(root / "blobs" / "abc", [b"1", b"2"], [1, 0], names=["ant", "bee"])
    folder = root / "snapshots" / "1f0c" / "data"
    folder.mkdir(parents=True)
    (folder / "train-00000-of-00001.parquet").symlink_to("../../../blobs/abc")
    path = "snapshots/1f0c/data/train-00000-of-00001"
    assert rows(huggingface(root)) == [(f"{path}/0", 1, "bee"), (f"{path}/1", 0, "ant")]
    (folder.parent / "classnames.txt").write_text("one\ntwo\n")
    assert [name for _, _, name in rows(huggingface(root))] == ["two", "one"]
    (root / "snapshots" / "2a1d").mkdir()
    with pytest.raises(ManifestError, match="contains 2 revisions of a data set"):
        huggingface(root)


def outside(kind: str, root: Path) -> None:
    path = write(kind, root.parent, "train", "ant")
    (root / path.name).symlink_to(path)


def names(root: Path, **files: list[str]) -> None:
    for name, classes in files.items():
        make_parquet(root / f"{name}.parquet", [b"1"], [0], names=classes)


SUFFIX = {"webdataset": ".tar", "huggingface": ".parquet"}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("make", "fact"),
    [
        (lambda kind, root: (root / "notes.txt").touch(), "file of train; found notes.txt"),
        (lambda kind, root: os.mkfifo(root / f"train{SUFFIX[kind]}"), "it is a device or a pipe"),
        (lambda kind, root: (root / f"0{SUFFIX[kind]}").symlink_to("no"), "cannot read .*No such"),
        (lambda kind, root: write(kind, root, "0", ""), "without a label: 1"),
        (outside, "is a link to .* outside of the root"),
    ],
)
def test_containers_that_cannot_serve_are_refused(
    tmp_path: Path, kind: str, make: Callable[[str, Path], object], fact: str
) -> None:
    root = tmp_path / "root"
    root.mkdir()
    make(kind, root)
    with pytest.raises(ClinitError, match=fact):
        scan(kind, root, "train")


@pytest.mark.parametrize(
    ("kind", "make", "fact"),
    [
        ("webdataset", lambda root: shard(root / "0.tar", ("../../c", "0")), "leads out"),
        ("huggingface", lambda root: names(root, a=["ant"], b=["bee"]), "different classes"),
        ("huggingface", lambda root: names(root, a=["crane"] * 2), "two classes named 'crane'"),
    ],
)
def test_a_data_set_in_containers_that_contradicts_itself_is_refused(
    tmp_path: Path, kind: str, make: Callable[[Path], object], fact: str
) -> None:
    make(tmp_path)
    with pytest.raises(ManifestError, match=fact):
        scan(kind, tmp_path, "train")

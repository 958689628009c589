import json
import os
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from clinit.errors import ManifestError
from clinit.extract.dataset.known import Columns
from clinit.extract.dataset.scan import Scan, available_splits, scan
from tests.extract.dataset.made import make_parquet


def rows(scanned: Scan) -> list[tuple[str, int, str]]:
    return scanned.manifest.table.select("path", "label", "class_name").rows()


def read(root: Path, split: str = "train", **options: Any) -> Scan:
    return scan("huggingface", root, split, **options)


def test_rows_stand_in_the_order_of_the_files(tmp_path: Path) -> None:
    for number, labels in enumerate(([1, 0], [1])):
        path = tmp_path / "data" / f"train-0000{number}-of-00002.parquet"
        make_parquet(path, [b"1"] * len(labels), labels, names=["ant", "bee"])
    make_parquet(tmp_path / "data" / "test-0.parquet", [b"1"], [0], names=["ant", "bee"])
    scanned = read(tmp_path)
    one, other = (f"data/train-0000{number}-of-00002.parquet" for number in (0, 1))
    assert rows(scanned) == [
        (f"{one}/0", 1, "bee"),
        (f"{one}/1", 0, "ant"),
        (f"{other}/0", 1, "bee"),
    ]
    assert scanned.warnings == ()
    table = scanned.manifest.table
    assert table["column"].to_list() == ["image"] * 3
    assert table["container_bytes"][0] == (tmp_path / one).stat().st_size
    assert rows(read(tmp_path, "val")) == [("data/test-0.parquet/0", 0, "ant")]
    assert available_splits("huggingface", tmp_path) == ("train", "val")


def test_labels_without_class_names_are_those_of_all_splits(tmp_path: Path) -> None:
    make_parquet(tmp_path / "train" / "0.parquet", [b"1"], ["bee"])
    make_parquet(tmp_path / "validation" / "0.parquet", [b"1"], ["ant"])
    assert rows(read(tmp_path)) == [("train/0.parquet/0", 1, "bee")]
    assert read(tmp_path).warnings == ("1 of 2 classes have no image in train (for example ant)",)


def test_test_files_become_val_where_that_is_asked_for(tmp_path: Path) -> None:
    for number, part in enumerate(("train", "validation", "test")):
        make_parquet(tmp_path / f"{part}.parquet", [b"1"], [number], names=["ant", "bee", "cat"])
    assert rows(read(tmp_path, "val")) == [("validation.parquet/0", 1, "bee")]
    test = read(tmp_path, "test")
    assert rows(test) == [("test.parquet/0", 2, "cat")]
    assert test.manifest.split == "val"


def test_a_file_of_class_names_comes_first(tmp_path: Path) -> None:
    make_parquet(tmp_path / "train.parquet", [b"1"], [1], names=["tench, Tinca tinca", "goldfish"])
    (tmp_path / "classnames.txt").write_text("n01440764\nn01443537\n")
    assert rows(read(tmp_path)) == [("train.parquet/0", 1, "n01443537")]


FEATURES = {"img": {"_type": "Image"}, "fine": {"_type": "ClassLabel", "names": ["ant", "bee"]}}
CARD = """---
license: mit
dataset_info:
  features:
  - name: img
    dtype: image
  - name: fine
    dtype:
      class_label:
        names:
          '0': ant
          '1': bee
  splits:
  - name: train
    num_examples: 3
---
# A card
"""


@pytest.mark.parametrize(
    ("name", "text"),
    [
        (
            "dataset_info.json",
            json.dumps({"features": FEATURES, "splits": {"train": {"num_examples": 3}}}),
        ),
        ("README.md", CARD),
        ("README.md", CARD.replace("dataset_info:\n  f", "dataset_info:\n- f")),
    ],
    ids=["json", "card", "card-of-one-configuration"],
)
def test_columns_classes_and_counts_are_read_from_beside_the_files(
    tmp_path: Path, name: str, text: str
) -> None:
    table = pl.DataFrame({"img": [b"1"], "mask": [b"2"], "fine": [1], "label": [0]})
    table.write_parquet(tmp_path / "train-0.parquet")
    (tmp_path / name).write_text(text)
    scanned = read(tmp_path)
    assert rows(scanned) == [("train-0.parquet/0", 1, "bee")]
    assert scanned.manifest.table["column"].to_list() == ["img"]
    assert scanned.warnings[0] == "1 images in train, expected 3 (2 missing)"


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("dataset_info.json", "{"),
        ("dataset_info.json", "[]"),
        ("dataset_info.json", '{"features": 1, "splits": [1]}'),
        ("README.md", "---\n: - [\n---\n"),
        ("README.md", "---\ndataset_info: 1\n---\n"),
        ("README.md", "---\ndataset_info:\n  features:\n  - 1\n  splits: 1\n---\n"),
        ("README.md", "no card"),
    ],
)
def test_a_description_that_is_none_is_not_taken(tmp_path: Path, name: str, text: str) -> None:
    make_parquet(tmp_path / "train.parquet", [b"1"], ["ant"])
    (tmp_path / name).write_text(text)
    assert rows(read(tmp_path)) == [("train.parquet/0", 0, "ant")]


def test_the_user_may_name_the_columns(tmp_path: Path) -> None:
    pl.DataFrame({"a": [b"1"], "b": [b"2"], "c": ["x"], "label": [0]}).write_parquet(
        tmp_path / "train.parquet"
    )
    scanned = read(tmp_path, columns=Columns("b", "c"))
    assert rows(scanned) == [("train.parquet/0", 0, "x")]
    assert scanned.manifest.table["column"].to_list() == ["b"]


def test_rows_without_a_label_are_left_out(tmp_path: Path) -> None:
    make_parquet(tmp_path / "test.parquet", [b"1", b"2", b"3"], [0, -1, None], names=["ant"])
    scanned = read(tmp_path, "val")
    assert rows(scanned) == [("test.parquet/0", 0, "ant")]
    assert scanned.warnings == ("images left out, without a label: 2 (for example test.parquet/1)",)


def test_files_that_name_different_classes_are_refused(tmp_path: Path) -> None:
    make_parquet(tmp_path / "train-0.parquet", [b"1"], [0], names=["ant"])
    make_parquet(tmp_path / "train-1.parquet", [b"1"], [0], names=["bee"])
    with pytest.raises(ManifestError, match="name different classes") as caught:
        read(tmp_path)
    assert "one configuration" in caught.value.remedy


def test_class_names_that_occur_twice_are_refused(tmp_path: Path) -> None:
    make_parquet(tmp_path / "train.parquet", [b"1"], [0], names=["crane", "crane"])
    with pytest.raises(ManifestError, match="the Parquet files call two classes 'crane'") as caught:
        read(tmp_path)
    assert "classnames.txt" in caught.value.remedy


def test_files_that_name_images_instead_of_holding_them_are_refused(tmp_path: Path) -> None:
    make_parquet(tmp_path / "train.parquet", [None] * 3, [0] * 3, names=["ant"])
    with pytest.raises(ManifestError, match="content of its images: the first 3 are null"):
        read(tmp_path)


def test_files_of_arrow_are_told_to_be_written_as_parquet(tmp_path: Path) -> None:
    (tmp_path / "data-00000-of-00001.arrow").touch()
    with pytest.raises(ManifestError, match=r"no \.parquet file of train; data-.*\.arrow is in A"):
        read(tmp_path)


def test_a_damaged_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "train.parquet").write_bytes(b"PAR1 nothing PAR1")
    with pytest.raises(ManifestError, match=r"train\.parquet cannot be read as a Parquet file"):
        read(tmp_path)


def test_names_that_look_like_patterns_are_those_of_files(tmp_path: Path) -> None:
    root = tmp_path / "data[1]"
    make_parquet(root / "train-0.parquet", [b"1", b"2"], [0, 0], names=["ant", "bee"])
    make_parquet(root / "train-[0].parquet", [b"1", b"2"], [1, 1], names=["ant", "bee"])
    assert [label for _, label, _ in rows(read(root))] == [0, 0, 1, 1]


def downloaded(root: Path, *revisions: str) -> Path:
    """Write what the Hub's library makes of a download: blobs, and links to them by revision."""
    table = pl.DataFrame({"img": [b"1", b"2"], "mask": [b"2"] * 2, "fine": [1, 0]})
    (root / "blobs").mkdir(parents=True)
    table.write_parquet(root / "blobs" / "abc")
    (root / "blobs" / "def").write_text(CARD)
    for revision in revisions:
        folder = root / "snapshots" / revision
        (folder / "data").mkdir(parents=True)
        (folder / "data" / "train-00000-of-00001.parquet").symlink_to("../../../blobs/abc")
        (folder / "README.md").symlink_to("../../blobs/def")
    return root


def test_the_card_of_a_download_lies_in_its_revision(tmp_path: Path) -> None:
    scanned = read(downloaded(tmp_path / "datasets--me--ants", "1f0c"))
    path = "snapshots/1f0c/data/train-00000-of-00001.parquet"
    assert rows(scanned) == [(f"{path}/0", 1, "bee"), (f"{path}/1", 0, "ant")]
    assert scanned.manifest.table["column"].to_list() == ["img"] * 2
    assert scanned.warnings == ("2 images in train, expected 3 (1 missing)",)


def test_a_description_in_the_root_comes_before_that_of_the_download(tmp_path: Path) -> None:
    root = downloaded(tmp_path / "datasets--me--ants", "1f0c")
    (root / "classnames.txt").write_text("one\ntwo\n")
    (root / "README.md").write_text(CARD.replace("num_examples: 3", "num_examples: 2"))
    assert [name for _, _, name in rows(read(root))] == ["two", "one"]
    assert read(root).warnings == ()


def test_several_revisions_of_a_download_are_refused(tmp_path: Path) -> None:
    root = downloaded(tmp_path / "datasets--me--ants", "1f0c", "2b7a")
    for look in (lambda: read(root), lambda: available_splits("huggingface", root)):
        with pytest.raises(ManifestError, match="holds 2 revisions of a data set") as caught:
            look()
        assert "(1f0c, 2b7a)" in str(caught.value)
        assert "hf cache rm" in caught.value.remedy


def test_a_file_under_two_names_is_refused(tmp_path: Path) -> None:
    make_parquet(tmp_path / "train-0.parquet", [b"1"], [0], names=["ant"])
    (tmp_path / "train-1.parquet").symlink_to("train-0.parquet")
    with pytest.raises(
        ManifestError, match=r"train-0\.parquet and train-1\.parquet in .* one file"
    ):
        read(tmp_path)


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "train.parquet")
    with pytest.raises(ManifestError, match=r"train\.parquet: it is a device or a pipe"):
        read(tmp_path)


def test_the_splits_are_told_without_a_look_into_the_files(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "train.parquet")
    assert available_splits("huggingface", tmp_path) == ("train",)


def test_a_damaged_first_image_does_not_stop_the_scan(tmp_path: Path) -> None:
    path = make_parquet(
        tmp_path / "train.parquet", [b"1" * 200] * 3, [0] * 3, names=["ant"], compression="gzip"
    )
    content = bytearray(path.read_bytes())
    place = content.index(b"\x1f\x8b")  # where the first page begins: the images
    content[place : place + 2] = b"\0\0"
    path.write_bytes(content)
    assert len(rows(read(tmp_path))) == 3

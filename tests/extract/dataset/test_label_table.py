"""Labels of images in a table, for images that are not in class folders."""

from pathlib import Path

import polars as pl
import pytest

from clinit.errors import ManifestError
from clinit.extract.dataset.scan import Scan, available_splits, scan
from clinit.files import arrays

IMAGES = ("1.jpg", "2.jpg", "deep/3.v2.png")


def labelled(root: Path, table: str, choice: str = "", split: str = "train") -> Scan:
    root.mkdir()
    for name in (*IMAGES, "labels.csv"):
        (root / name).parent.mkdir(exist_ok=True)
        (root / name).write_text(table.replace("ROOT", str(root)))
    return scan("folder", root, split, labels=f"{root / 'labels.csv'}{choice}")


# A table, the columns that are named, the labels of the images that it gives.
TABLES = r"""
path,class\n1.jpg,b\n2.jpg,a\ndeep/3.v2.png,a | | 2.jpg a deep/3.v2.png a 1.jpg b
\ufeffImage ID;Species\r\n3.v2;10 | | deep/3.v2.png 10
filename\tlabel\tclass_name\nROOT/1.jpg\t0\ta\n.\\2.jpg\t1\tb | | 1.jpg a 2.jpg b
x,y,z\n1.jpg,b,a\n | :path=x,class=z | 1.jpg a
file,label,split\n1.jpg,a,Training\n2.jpg,b,test | | 1.jpg a
file,label,set\n1.jpg,a,7\n2.jpg,b,8 | :split= | 1.jpg a 2.jpg b
file,label,is_valid\n1.jpg,a,False\n2.jpg,b,True | | 1.jpg a
file,label,is_training_image\n1.jpg,a,1\n2.jpg,b,0 | | 1.jpg a
file,label,test\n1.jpg,a,false\n2.jpg,b,true | :split=test | 1.jpg a
file,label,Phase\n1.jpg,a,train\n2.jpg,b,val | | 1.jpg a
a=b,label\n1.jpg,a | :path=a=b,class=label | 1.jpg a
sep=;\r\nfile;label\r\n1.jpg;a,b | | 1.jpg a,b
file,label\n3.v2.png,a\n3.v2.png,a | | deep/3.v2.png a
"""


@pytest.mark.parametrize("line", TABLES.strip().splitlines())
def test_a_table_gives_images_their_classes(tmp_path: Path, line: str) -> None:
    table, choice, expected = line.split(" |")
    text = table.encode().decode("unicode_escape")
    found = labelled(tmp_path / "images", text, choice.strip()).manifest
    rows = found.table.select("path", "class_name").rows()
    assert [word for row in rows for word in row] == expected.split()


def test_the_unicode_text_of_excel_is_a_table(tmp_path: Path) -> None:
    (tmp_path / "1.jfif").touch()
    (tmp_path / "a.txt").write_text("file\tlabel\n1\tRösti\n", encoding="utf-16")
    found = scan("folder", tmp_path, "train", labels=str(tmp_path / "a.txt"))
    assert found.manifest.class_names == ("Rösti",)


def test_what_has_no_line_or_no_image_is_counted(tmp_path: Path) -> None:
    root, table = tmp_path / "images", "file,label\n1.jpg,a\n9.jpg,a\n2.jpg,\n"
    found = labelled(root, table)
    assert found.warnings == (
        "lines of labels.csv without an image: 1 (for example 9.jpg)",
        "images left out, without a line in labels.csv: 2 (for example 2.jpg)",
        "lines of labels.csv without a path or a class: 1 (for example row 3)",
    )
    assert found.notes == ("labels.csv: path in file, class in label",)


def test_splits_and_groups_are_columns_and_folders_may_name_splits(tmp_path: Path) -> None:
    root, table = tmp_path / "images", tmp_path / "labels.parquet"
    for name in ("train/1.jpg", "train/2.jpg", "test/1.jpg"):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).touch()
    lines = {"file": ["train/1.jpg", "train/2.jpg", "test/1.jpg"], "label": [1, 0, 1]}
    pl.DataFrame({**lines, "patient": ["x", None, "y"]}).write_parquet(table)
    assert available_splits("folder", root, str(table)) == ("train", "val")
    found = scan("folder", root, "train", labels=str(table))
    assert found.manifest.table["path"].to_list() == ["train/2.jpg", "train/1.jpg"]
    assert found.groups.rows() == [("train/1.jpg", "x"), ("train/2.jpg", None)]
    assert scan("folder", root, "test", labels=str(table)).manifest.split == "val"


@pytest.mark.parametrize(
    ("table", "choice", "fact"),
    [
        (
            "file,genus\n1.jpg,a",
            "",
            "no column that is known as the class; its columns are file, g",
        ),
        ("file,label\n1.jpg,a", ":path=x", "no column 'x'; its columns are file, label"),
        ("file,label\n/etc/passwd,a", "", "names /etc/passwd, which is outside of"),
        ("file,label\n../1.jpg,a", "", "names ../1.jpg, which is outside of"),
        ("file,label\n1.jpg,a\n1.jpg,b", "", "1.jpg has two classes, a and b"),
        ("file,label,split\n1.jpg,a,foo", "", "the split 'foo' in split is none of train, val"),
        ("file,label,is_test\n1.jpg,a,2", "", "the split '2' in is_test is none of train, val"),
        ("file,label,valid,is_test\n1.jpg,a,0,1", "", "of splits, valid and is_test"),
        ("1.jpg,a\n2.jpg,b", "", "its first line looks like an image, not a header: 1.jpg, a"),
        ("file,label\n9.jpg,a", "", "labels no train image in"),
        ("file,label\n1.jpg,a,b", "", "cannot be read as a table of labels"),
        ("", "", "cannot be read as a table of labels"),
        ("file,label\n" * 2**20, "", "it is larger than 8.39 MB"),
    ],
)
def test_a_table_that_does_not_fit_is_refused(
    tmp_path: Path, table: str, choice: str, fact: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(arrays, "_MOST_TEXT", 2**23)
    with pytest.raises(ManifestError) as refusal:
        labelled(tmp_path / "images", table, choice)
    assert fact in str(refusal.value)


@pytest.mark.parametrize(("dataset", "name"), [("imagenet1k", "x.csv"), ("folder", "gone.csv")])
def test_a_table_needs_a_folder_and_a_file(tmp_path: Path, dataset: str, name: str) -> None:
    with pytest.raises(ManifestError, match=r"--labels is for|no table at"):
        scan(dataset, tmp_path, "train", labels=str(tmp_path / name))

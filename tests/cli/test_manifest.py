"""A manifest from images, and what is known of a data set, through the command line."""

from pathlib import Path

import polars as pl
import pytest
from typer.testing import Result

from clinit.extract.dataset.manifest import read_manifest
from tests.cli.calls import call, checked, refused
from tests.extract.dataset.made import make_tar


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for name in ("train/ant/1.png", "train/ant/2.png", "train/bee/1.png", "val/cat/1.png"):
        path = tmp_path / "photos [bold]" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"x" * 1500)
    return tmp_path / "photos [bold]"


def build(root: Path, *more: str, dataset: str = "folder") -> tuple[Result, Path]:
    file = root / "a rather long name of a folder" / "that would be wrapped" / "train.parquet"
    arguments = ("--root", root, "--split", "train", "--out", file)
    return call("manifest", "build", dataset, *arguments, *more), file


def test_build_writes_a_manifest_and_says_what_is_in_it(root: Path) -> None:
    for number in range(10, 20):
        (root / f"train/ant/{number}.png").touch()
    result, file = build(root)
    assert result.exit_code == 0
    manifest = read_manifest(file)
    assert len(manifest.table) == 13
    for shown in (
        *("…  and 8 more", f"digest {manifest.digest}", "0  ant  1,500 B  train/ant/1.png"),
    ):
        assert shown in result.stdout
    assert result.stdout == call("manifest", "show", file).stdout + f"Wrote {file}\n"
    assert "Warning: 1 of 3 classes have no image in train (for example cat)" in result.stderr
    assert call("manifest", "show", file, "--classes").stdout == "ant\nbee\ncat\n"


@pytest.mark.parametrize(
    ("dataset", "options", "fact"),
    [
        ("folder", ("--strict",), "1 of 3 classes have no image in train"),
        ("imagenet", (), "known are digits, imagenet1k, places365 and folder"),
        ("folder", ("--split", "dev"), "is not one of"),
        ("folder", ("--label-column", "label"), "are for Parquet files"),
    ],
)
def test_what_cannot_be_built_writes_nothing(
    root: Path, dataset: str, options: tuple[str, ...], fact: str
) -> None:
    result, file = build(root, *options, dataset=dataset)
    assert fact in f"{result.stderr} {result.exception}"
    assert not file.exists()


def test_shards_are_listed_with_the_number_of_their_files(tmp_path: Path) -> None:
    for split, names in (("train", "ab"), ("val", "a")):
        members = [(f"{name}.jpg", b"x" * 1500) for name in names]
        labels = [(f"{name}.txt", name.encode()) for name in names]
        make_tar(tmp_path / f"{split}.tar", [*members, *labels])
    result, _ = build(tmp_path, dataset="webdataset")
    for shown in ("containers", "0  a  1,500 B  train.tar/a.jpg"):
        assert shown in result.stdout


def test_columns_of_parquet_files_may_be_named(tmp_path: Path) -> None:
    table = pl.DataFrame({"a": [b"1"], "b": [b"2"], "fine": [0], "coarse": ["insect"]})
    table.write_parquet(tmp_path / "train.parquet")
    out = ("--root", tmp_path, "--split", "train", "--out", tmp_path / "out" / "m")
    error = refused(call("manifest", "build", "huggingface", *out))
    assert "`--image-column` of `clinit manifest build`" in error.remedy
    named = ("--image-column", "b", "--label-column", "coarse")
    result = call("manifest", "build", "huggingface", *out, *named)
    assert "0  insect  train.parquet/0" in result.stdout
    assert read_manifest(tmp_path / "out" / "m").table["column"].to_list() == ["b"]


def test_a_known_data_set_is_shown_with_its_sizes_classes_and_layouts() -> None:
    names = checked(call("manifest", "show", "places365", "--classes")).split()
    assert len(names) == 365
    shown = checked(call("manifest", "show", "places365"))
    assert all(fact in shown for fact in (names[0], names[-1], "1,803,460", "Layouts"))

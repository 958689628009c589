from pathlib import Path

import polars as pl
import pytest
from typer.testing import CliRunner, Result

from clinit.cli.manifest import app
from clinit.errors import ManifestError
from clinit.extract.dataset.manifest import read_manifest
from tests.extract.dataset.made import make_tar


def run(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


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
    return run("build", dataset, *arguments, *more), file


def test_build_writes_a_manifest_and_says_what_is_in_it(root: Path) -> None:
    result, file = build(root)
    assert result.exit_code == 0
    assert read_manifest(file).table["label"].to_list() == [0, 0, 1]
    assert f"Wrote {file}" in result.stdout
    for shown in ("smallest class", "bee (1)", "largest class", "ant (2)", "4.5 kB"):
        assert shown in result.stdout
    assert f"digest {read_manifest(file).digest}" in result.stdout
    assert "0  ant  1,500 B  train/ant/1.png" in result.stdout


def test_warnings_go_to_the_error_stream(root: Path) -> None:
    result, _ = build(root)
    warning = "Warning: 1 of 3 classes have no image in train (for example cat)"
    assert warning in result.stderr
    assert "Warning" not in result.stdout


def test_test_images_are_listed_as_the_split_val(root: Path, tmp_path: Path) -> None:
    (root / "val").rename(root / "test")
    words = ("--root", root, "--split", "test", "--out", tmp_path / "m.parquet")
    assert run("build", "folder", *words).exit_code == 0
    assert read_manifest(tmp_path / "m.parquet").split == "val"
    refused = run("build", "digits", *words)
    assert "digits has no test images with labels" in str(refused.exception)


def test_strict_writes_nothing(root: Path) -> None:
    result, file = build(root, "--strict")
    assert isinstance(result.exception, ManifestError)
    assert "1 of 3 classes have no image in train" in str(result.exception)
    assert not file.exists()


def test_an_unknown_data_set_is_refused(root: Path) -> None:
    result, _ = build(root, dataset="imagenet")
    assert isinstance(result.exception, ManifestError)
    assert "known are digits, imagenet1k, places365 and folder" in str(result.exception)


def test_a_split_is_train_val_or_test(root: Path) -> None:
    result = run("build", "folder", "--root", root, "--split", "dev", "--out", root / "x")
    assert result.exit_code == 2
    assert "is not one of" in result.stderr


def test_show_repeats_what_build_said(root: Path) -> None:
    built, file = build(root)
    shown = run("show", file)
    assert shown.exit_code == 0
    assert built.stdout == shown.stdout + f"Wrote {file}\n"


def test_show_prints_no_more_than_the_first_rows(root: Path) -> None:
    for number in range(10, 20):
        (root / f"train/ant/{number}.png").touch()
    result, _ = build(root)
    assert "…  and 8 more" in result.stdout


def test_show_describes_a_known_data_set() -> None:
    result = run("show", "imagenet1k")
    assert result.exit_code == 0
    assert "1,000 classes, from n01440764 (label 0) to n15075141" in result.stdout
    assert "train: 1,281,167 images" in result.stdout
    assert "    with meta.mat and ILSVRC2012_validation_ground_truth.txt" in result.stdout
    assert "together: 1,797 images" in run("show", "digits").stdout


def test_show_reports_an_absent_file(tmp_path: Path) -> None:
    result = run("show", tmp_path / "absent.parquet")
    assert isinstance(result.exception, ManifestError)
    assert "no manifest file at" in str(result.exception)


def test_show_proposes_a_data_set_of_nearly_that_name(tmp_path: Path) -> None:
    for word, meant in (("imagnet1k", "imagenet1k"), ("place365", "places365")):
        error = run("show", word).exception
        assert isinstance(error, ManifestError)
        assert f"Did you mean {meant}?" in error.remedy
        assert "manifest build" not in error.remedy


def test_list_names_the_known_data_sets() -> None:
    result = run("list")
    assert result.exit_code == 0
    for shown in (
        "digits",
        "imagenet1k",
        "1,281,167",
        "places365",
        "36,500",
        "folder",
        "webdataset",
        "huggingface",
    ):
        assert shown in result.stdout


def test_shards_are_listed_with_the_number_and_the_size_of_their_files(tmp_path: Path) -> None:
    for split, names in (("train", "ab"), ("val", "a")):
        members = [(f"{name}.jpg", b"x" * 1500) for name in names]
        labels = [(f"{name}.txt", name.encode()) for name in names]
        make_tar(tmp_path / f"{split}.tar", [*members, *labels])
    result, file = build(tmp_path, dataset="webdataset")
    assert result.exit_code == 0
    for shown in ("containers", "their size", "10.2 kB", "0  a  1,500 B  train.tar/a.jpg"):
        assert shown in result.stdout
    assert run("show", file).stdout + f"Wrote {file}\n" == result.stdout


def test_columns_of_parquet_files_may_be_named(tmp_path: Path) -> None:
    table = pl.DataFrame({"a": [b"1"], "b": [b"2"], "fine": [0], "coarse": ["insect"]})
    table.write_parquet(tmp_path / "train.parquet")
    result, _ = build(tmp_path, dataset="huggingface")
    assert isinstance(result.exception, ManifestError)
    assert "`--image-column` of `clinit manifest build`" in result.exception.remedy
    (tmp_path / "out").mkdir()
    arguments = ("--root", tmp_path, "--split", "train", "--out", tmp_path / "out" / "m")
    named = ("--image-column", "b", "--label-column", "coarse")
    result = run("build", "huggingface", *arguments, *named)
    assert result.exit_code == 0
    assert "0  insect  train.parquet/0" in result.stdout
    assert read_manifest(tmp_path / "out" / "m").table["column"].to_list() == ["b"]


def test_columns_mean_nothing_to_other_sources(root: Path) -> None:
    result, _ = build(root, "--label-column", "label")
    assert result.exit_code == 2
    assert "are of Parquet files" in result.stderr


def test_every_manifest_command_has_help() -> None:
    assert all(command.callback and command.callback.__doc__ for command in app.registered_commands)


def test_classes_are_printed_one_per_line() -> None:
    result = CliRunner().invoke(app, ["show", "digits", "--classes"])
    assert result.exit_code == 0
    names = result.output.split()
    assert len(names) == 10

import os
from pathlib import Path

import pytest

from clinit.errors import ManifestError
from clinit.extract.dataset.manifest import write_manifest
from clinit.extract.dataset.scan import available_splits, scan


def put(root: Path, *names: str) -> Path:
    """Write a file at each name, as many bytes long as its name."""
    for name in names:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"x" * len(path.name))
    return root


def rows(root: Path, split: str = "train", dataset: str = "folder") -> list[tuple[str, int]]:
    return scan(dataset, root, split).manifest.table.select("path", "label").rows()


def test_every_image_has_a_row_with_path_label_name_and_size(tmp_path: Path) -> None:
    put(tmp_path, "train/b/2.png", "train/b/10.PNG", "train/a/long name.JPEG", "val/c/x.webp")
    scanned = scan("folder", tmp_path, "train")
    assert scanned.manifest.table.rows() == [
        ("train/a/long name.JPEG", 0, "a", 14),
        ("train/b/10.PNG", 1, "b", 6),
        ("train/b/2.png", 1, "b", 5),
    ]
    assert scanned.layout == "class-folders"


def test_labels_agree_between_splits_with_different_classes(tmp_path: Path) -> None:
    put(tmp_path, "train/b/1.png", "train/c/1.png", "val/a/1.png", "val/c/1.png")
    train, val = (scan("folder", tmp_path, split) for split in ("train", "val"))
    assert train.manifest.class_names == val.manifest.class_names == ("a", "b", "c")
    assert rows(tmp_path, "val") == [("val/a/1.png", 0), ("val/c/1.png", 2)]
    assert train.warnings == ("1 of 3 classes have no image in train (for example a)",)


def test_class_folders_alone_are_train(tmp_path: Path) -> None:
    put(tmp_path, "b/1.png", "a/1.png")
    assert rows(tmp_path) == [("a/1.png", 0), ("b/1.png", 1)]
    assert available_splits("folder", tmp_path) == ("train",)
    with pytest.raises(ManifestError, match="no val split of folder"):
        scan("folder", tmp_path, "val")


@pytest.mark.parametrize("name", ["val", "validation", "Valid", "dev", "test", "Testing"])
def test_val_beside_train_may_have_any_of_its_usual_names(tmp_path: Path, name: str) -> None:
    put(tmp_path, "train/a/1.png", "train/b/1.png", f"{name}/b/2.png")
    assert available_splits("folder", tmp_path) == ("train", "val")
    val = scan("folder", tmp_path, "val")
    assert val.manifest.split == "val"
    assert val.manifest.table.select("path", "label").rows() == [(f"{name}/b/2.png", 1)]


def test_test_images_are_read_as_val_where_that_is_asked_for(tmp_path: Path) -> None:
    put(tmp_path, "train/a/1.png", "train/b/1.png", "val/a/2.png", "test/a/3.png", "test/b/3.png")
    val, test = scan("folder", tmp_path, "val"), scan("folder", tmp_path, "test")
    assert val.manifest.table["path"].to_list() == ["val/a/2.png"]
    assert "test was left out: val comes first" in val.warnings
    assert test.manifest.split == "val"
    assert test.manifest.table["path"].to_list() == ["test/a/3.png", "test/b/3.png"]
    assert test.warnings == ()
    assert test.manifest.class_names == scan("folder", tmp_path, "train").manifest.class_names
    with pytest.raises(ManifestError, match="imagenet1k has no test images with labels") as caught:
        scan("imagenet1k", tmp_path, "test")
    assert caught.value.remedy == "Give --split val."


def test_class_folders_with_names_of_splits_are_classes_where_there_is_no_train(
    tmp_path: Path,
) -> None:
    put(tmp_path, "cat/1.png", "dev/images/1.png", "test/images/1.png")
    assert available_splits("folder", tmp_path) == ("train",)
    assert scan("folder", tmp_path, "train").manifest.class_names == ("cat", "dev", "test")


def test_a_class_called_train_is_not_taken_for_a_split(tmp_path: Path) -> None:
    put(tmp_path, "train/1.png", "car/1.png", "bus/1.png")
    assert [label for _, label in rows(tmp_path)] == [0, 1, 2]
    assert scan("folder", tmp_path, "train").manifest.class_names == ("bus", "car", "train")


def test_rows_are_in_code_point_order(tmp_path: Path) -> None:
    names = [
        "Z.png",
        "a.png",
        "é.png",
        "ﬀ.png",
        "\U00010400.png",
        "_.png",
        "10.png",
        "9.png",
        "a b.png",
    ]
    put(tmp_path, *(f"train/k/{name}" for name in names))
    found = [path.rpartition("/")[2] for path, _ in rows(tmp_path)]
    assert found == sorted(names)  # Python compares strings by code point


def test_the_order_of_the_disk_does_not_matter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(tmp_path, *(f"train/{c}/{i}.png" for c in "abc" for i in range(20)))
    write_manifest(scan("folder", tmp_path, "train").manifest, tmp_path / "1.parquet")
    real = os.scandir

    class Reversed:
        def __init__(self, path: Path) -> None:
            with real(path) as entries:
                self.entries = list(entries)[::-1]

        def __enter__(self) -> list[os.DirEntry[str]]:
            return self.entries

        def __exit__(self, *_: object) -> None:
            pass

    monkeypatch.setattr("clinit.extract.dataset.tree.os.scandir", Reversed)
    write_manifest(scan("folder", tmp_path, "train").manifest, tmp_path / "2.parquet")
    assert (tmp_path / "1.parquet").read_bytes() == (tmp_path / "2.parquet").read_bytes()


def test_files_of_other_kinds_are_left_out_and_counted(tmp_path: Path) -> None:
    put(tmp_path, "train/a/1.png", "train/a/notes.txt", "train/a/archive.tar", "train/a/png")
    os.mkfifo(tmp_path / "train/a/pipe.png")
    scanned = scan("folder", tmp_path, "train")
    assert len(scanned.manifest.table) == 1
    assert scanned.warnings == (
        "files left out, not images by their names: 4 (for example train/a/archive.tar)",
    )


def test_images_of_other_endings_are_told_apart_from_other_files(
    tmp_path: Path,
) -> None:
    put(tmp_path, "train/a/1.png", "train/a/2.HEIC", "train/a/3.heic", "train/a/a.txt")
    untaken, others = scan("folder", tmp_path, "train").warnings
    assert ".heic" in untaken
    assert "2 (for example train/a/2.HEIC)" in untaken
    assert "1 (for example train/a/a.txt)" in others


def test_hidden_files_and_folders_are_ignored_without_a_word(tmp_path: Path) -> None:
    put(tmp_path, "train/a/1.png", "train/a/._1.png", "train/.cache/1.png", ".DS_Store")
    put(tmp_path, "train/a/.thumbs/1.png")
    scanned = scan("folder", tmp_path, "train")
    assert len(scanned.manifest.table) == 1
    assert scanned.warnings == ()


def test_images_beside_the_class_folders_are_counted(tmp_path: Path) -> None:
    put(tmp_path, "train/a/1.png", "train/2.png", "train/read me.txt")
    assert scan("folder", tmp_path, "train").warnings == (
        "files left out, outside of any class folder: 2 (for example train/2.png)",
    )


@pytest.mark.parametrize(
    "found", ["train/a/notes.txt", "train/2.png", "val/b/1.png"], ids=["other", "loose", "empty"]
)
def test_strict_makes_a_warning_an_error(tmp_path: Path, found: str) -> None:
    put(tmp_path, "train/a/1.png", found)
    (warning,) = scan("folder", tmp_path, "train").warnings
    with pytest.raises(ManifestError, match="is not a complete train split of folder") as refusal:
        scan("folder", tmp_path, "train", strict=True)
    assert warning in str(refusal.value)
    assert "leave out --strict" in refusal.value.remedy


def test_counts_are_compared_with_the_description(tmp_path: Path) -> None:
    put(tmp_path, "train/n01440764/1.JPEG", "train/n01443537/1.JPEG")
    put(tmp_path, "train/n01443537/2.JPEG", "train/cat/1.JPEG")
    scanned = scan("imagenet1k", tmp_path, "train")
    assert scanned.manifest.table["label"].to_list() == [0, 1, 1]
    assert scanned.warnings == (
        "folders left out, no class of ImageNet-1K (ILSVRC 2012): 1 (for example train/cat)",
        "3 images in train, expected 1,281,167 (1,281,164 missing)",
        "998 of 1,000 classes have no image in train (for example n01484850)",
    )
    with pytest.raises(ManifestError, match=r"expected 1,281,167 \(1,281,164 missing\)"):
        scan("imagenet1k", tmp_path, "train", strict=True)


def test_available_splits_are_those_whose_layout_is_there(tmp_path: Path) -> None:
    put(tmp_path, "val/n01440764/1.JPEG")
    assert available_splits("imagenet1k", tmp_path) == ("val",)
    assert available_splits("places365", tmp_path) == ()
    put(tmp_path, "train/n01440764/1.JPEG")
    assert available_splits("imagenet1k", tmp_path) == ("train", "val")
    assert available_splits("folder", tmp_path) == ("train", "val")


def test_a_root_may_be_a_link(tmp_path: Path) -> None:
    put(tmp_path / "real", "train/a/1.png")
    (tmp_path / "link").symlink_to("real")
    assert rows(tmp_path / "link") == [("train/a/1.png", 0)]


def test_links_under_the_root_are_followed(tmp_path: Path) -> None:
    put(tmp_path, "train/a/1.png", "store/22.png", "store/more/333.png")
    (tmp_path / "train/a/2.png").symlink_to("../../store/22.png")
    (tmp_path / "train/b").symlink_to(tmp_path / "store/more")
    scanned = scan("folder", tmp_path, "train")
    assert scanned.manifest.table.select("path", "size_bytes").rows() == [
        ("train/a/1.png", 5),
        ("train/a/2.png", 6),
        ("train/b/333.png", 7),
    ]


@pytest.mark.parametrize("link", ["train/a/2.png", "train/b", "val", "train/a/deep", "train/a/x"])
def test_a_link_that_leaves_the_root_is_refused_by_name(tmp_path: Path, link: str) -> None:
    root = put(tmp_path / "root", "train/a/1.png")
    put(tmp_path, "outside/c/2.png", "root2/3.png")
    target = tmp_path / ("outside/c/2.png" if link.endswith("png") else "outside")
    (root / link).symlink_to(target)
    with pytest.raises(
        ManifestError, match=f"{link} is a link to .*outside.*, outside of the root"
    ):
        scan("folder", root, "train")


def test_a_link_to_nothing_keeps_its_row_and_is_warned_of(tmp_path: Path) -> None:
    put(tmp_path, "train/a/1.png")
    (tmp_path / "train/a/2.png").symlink_to("gone.png")
    scanned = scan("folder", tmp_path, "train")
    assert scanned.manifest.table["size_bytes"].to_list() == [5, 0]
    assert scanned.warnings == ("images that are links to nothing: 1 (for example train/a/2.png)",)


def test_a_link_to_a_folder_above_is_refused(tmp_path: Path) -> None:
    put(tmp_path, "train/a/1.png")
    (tmp_path / "train/a/again").symlink_to("..")
    with pytest.raises(ManifestError, match="links back to a folder above it"):
        scan("folder", tmp_path, "train")


def test_two_folders_that_link_to_each_other_are_refused(tmp_path: Path) -> None:
    put(tmp_path, "train/a/1.png", "train/b/1.png")
    (tmp_path / "train/a/to_b").symlink_to("../b")
    (tmp_path / "train/b/to_a").symlink_to("../a")
    with pytest.raises(ManifestError, match="links back to a folder above it"):
        scan("folder", tmp_path, "train")


@pytest.mark.parametrize("name", [b"train/a/\xff.png", b"train/\xff/1.png"])
def test_a_name_that_is_not_utf8_is_refused_by_name(tmp_path: Path, name: bytes) -> None:
    put(tmp_path, "train/a/1.png")
    path = os.path.join(os.fsencode(tmp_path), name)  # noqa: PTH118  pathlib takes no bytes
    os.makedirs(os.path.dirname(path), exist_ok=True)  # noqa: PTH103, PTH120
    with open(path, "wb"):  # noqa: PTH123
        pass
    shown = name.decode("utf-8", "backslashreplace")
    with pytest.raises(ManifestError) as refusal:
        scan("folder", tmp_path, "train")
    assert f"the file name {shown} is not valid UTF-8" in str(refusal.value)
    str(refusal.value).encode()  # can be printed
    assert "Rename" in refusal.value.remedy


def test_an_absent_root_is_reported_with_a_remedy(tmp_path: Path) -> None:
    with pytest.raises(ManifestError, match=r"no folder at .*gone: found nothing") as refusal:
        scan("folder", tmp_path / "gone", "train")
    assert "mounted" in refusal.value.remedy


def test_a_root_that_is_a_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ManifestError, match=r"no folder at .*x.tar: found a file"):
        scan("folder", put(tmp_path, "x.tar") / "x.tar", "train")


def test_an_unreadable_folder_is_reported_with_a_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(tmp_path, "train/a/1.png", "train/b/1.png")
    real = os.scandir

    def refuse(path: Path) -> object:  # permissions do not stop root, who may run the tests
        if Path(path).name == "b":
            raise PermissionError(13, "Permission denied")
        return real(path)

    monkeypatch.setattr("clinit.extract.dataset.tree.os.scandir", refuse)
    with pytest.raises(ManifestError, match=r"cannot read .*train/b: Permission denied") as refusal:
        scan("folder", tmp_path, "train")
    assert "permissions" in refusal.value.remedy


def test_a_folder_that_fits_no_layout_is_told_what_was_looked_for_and_found(
    tmp_path: Path,
) -> None:
    put(tmp_path, "train/cat/1.png", "ILSVRC2012_img_val/ILSVRC2012_val_00000001.JPEG", "meta.mat")
    with pytest.raises(ManifestError) as refusal:
        scan("imagenet1k", tmp_path, "val")
    assert str(refusal.value) == (
        f"no val split of imagenet1k in {tmp_path}; looked for"
        " class-folders: ILSVRC2012_img_val with no class folder of ImageNet-1K (ILSVRC 2012);"
        " imagenet-kaggle: no LOC_val_solution.csv in ., ILSVRC, devkit/data,"
        " ILSVRC2012_devkit_t12/data, ILSVRC/devkit/data, devkit, data;"
        " imagenet-devkit: no ILSVRC2012_validation_ground_truth.txt in ., ILSVRC, devkit/data,"
        " ILSVRC2012_devkit_t12/data, ILSVRC/devkit/data, devkit, data;"
        " and found ILSVRC2012_img_val/, meta.mat, train/"
    )
    assert "clinit manifest show imagenet1k" in refusal.value.remedy
    assert "`folder`" in refusal.value.remedy


@pytest.mark.parametrize(
    ("root", "parent"), [("more/bar", "more"), ("more/train/bar", "more"), ("bar", ".")]
)
def test_the_folder_of_one_class_is_asked_to_be_given_with_its_parent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, root: str, parent: str
) -> None:
    monkeypatch.chdir(tmp_path)
    put(tmp_path, f"{root}/1.png", f"{root}/2.png", f"{root}/notes.txt")
    with pytest.raises(ManifestError) as refusal:
        scan("folder", Path(root), "train")
    assert str(refusal.value) == f"{root} holds images (1.png) and no folder of a class"
    assert f"folder of one class, give its parent: {parent}. Each class" in refusal.value.remedy


def test_class_folders_without_any_image_are_an_error(tmp_path: Path) -> None:
    put(tmp_path, "train/n01440764/n01440764.tar")
    with pytest.raises(ManifestError, match="no train image of imagenet1k") as refusal:
        scan("imagenet1k", tmp_path, "train")
    assert "train/n01440764/n01440764.tar" in str(refusal.value)
    assert "Unpack" in refusal.value.remedy


def test_an_unknown_split_is_a_wrong_argument(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="split must be one of train, val, test, got 'dev'"):
        scan("folder", tmp_path, "dev")

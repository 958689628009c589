import os
from collections.abc import Iterator
from contextlib import contextmanager
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


# Files, what is read, its rows, the classes of both splits, the splits that are there. A folder
# named as a split is a class only if it has images of its own, next to other classes.
TREES = """
b/1.png a/1.png | train | a/1.png 0 b/1.png 1 | a b | train
train/b/1.png train/c/1.png val/a/1.png | val | val/a/1.png 0 | a b c | train val
train/a/1.png train/b/1.png Valid/b/2.png | val | Valid/b/2.png 1 | a b | train val
train/a/1.png train/b/1.png dev/b/2.png | val | dev/b/2.png 1 | a b | train val
train/a/1.png train/b/1.png Testing/b/2.png | val | Testing/b/2.png 1 | a b | train val
train/a/1.png val/a/2.png test/a/3.png | val | val/a/2.png 0 | a | train val
train/a/1.png val/a/2.png test/a/3.png | test | test/a/3.png 0 | a | train val
training_set/a/1.png test_set/a/2.png | test | test_set/a/2.png 0 | a | train val
seg_train/seg_train/a/1.png seg_dev/x | train | seg_train/seg_train/a/1.png 0 | a | train
x/train-images/a/1.png x/Dev/a/1.png | val | x/Dev/a/1.png 0 | a | train val
x/a/1.png x/b/1.png | train | x/a/1.png 0 x/b/1.png 1 | a b | train
mnist/0/1.png mnist/1/1.png | train | mnist/0/1.png 0 mnist/1/1.png 1 | 0 1 | train
train/a/1.png val/val/a/1.png | val | val/val/a/1.png 0 | a | train val
train/a/images/1.png val/images/1.png | train | train/a/images/1.png 0 | a | train
test/a/1.png test/b/1.png | val | test/a/1.png 0 test/b/1.png 1 | a b | val
train/1.png car/1.png | train | car/1.png 0 train/1.png 1 | car train | train
"""


@pytest.mark.parametrize("line", TREES.strip().splitlines())
def test_folders_are_splits_or_classes(tmp_path: Path, line: str) -> None:
    names, split, found, classes, splits = line.split(" | ")
    put(tmp_path / "real", *names.split())
    (tmp_path / "link").symlink_to("real")
    scanned = scan("folder", tmp_path / "link", split).manifest
    rows = scanned.table.select("path", "label").rows()
    assert " ".join(f"{path} {label}" for path, label in rows) == found
    assert scanned.class_names == tuple(classes.split())
    assert scanned.split == ("train" if split == "train" else "val")
    assert available_splits("folder", tmp_path / "link") == tuple(splits.split())


def test_the_order_of_the_disk_does_not_matter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(tmp_path, *(f"train/{c}/{i}.png" for c in "abc" for i in range(20)))
    write_manifest(scan("folder", tmp_path, "train").manifest, tmp_path / "1.parquet")
    real = os.scandir

    @contextmanager
    def reversed_scandir(path: Path) -> Iterator[list[os.DirEntry[str]]]:
        with real(path) as entries:
            yield list(entries)[::-1]

    monkeypatch.setattr("clinit.extract.dataset.tree.os.scandir", reversed_scandir)
    write_manifest(scan("folder", tmp_path, "train").manifest, tmp_path / "2.parquet")
    assert (tmp_path / "1.parquet").read_bytes() == (tmp_path / "2.parquet").read_bytes()


WARNINGS = """
train/Elk/1.png val/elk/1.png | val has elk, train has Elk
a_b/1.png A-b/1.png | differ in spelling only: A-b and a_b
elk/1.png elk/2019/1.png | images in folders inside a class folder, which count as its own: 1
elk/1.png test/1.png | the folder test has images of its own: it is read as a class
train/elk/1.png cow/1.png | folders left out, next to splits: 1 (for example cow)
train/elk/1.png test/1.png | splits left out, whose images are in no class folder
train/elk/1.png 1.png | files left out, outside of any class folder: 1 (for example 1.png)
elk/1.png cow/ | 1 of 2 classes have no image in train (for example cow)
"""


@pytest.mark.parametrize("line", WARNINGS.strip().splitlines())
def test_an_unusual_tree_is_read_with_a_warning(tmp_path: Path, line: str) -> None:
    names, warning = line.split(" | ")
    for name in names.split():
        (tmp_path / name).mkdir() if name[-1] == "/" else put(tmp_path, name)
    assert warning in "; ".join(scan("folder", tmp_path, "train").warnings)


def test_other_files_are_left_out_and_counted(tmp_path: Path) -> None:
    put(tmp_path, "train/a/1.png", "train/a/notes.txt", "train/a/archive.tar", "train/a/png")
    put(tmp_path, "train/a/2.HEIC", "train/a/3.heic", "train/2.png", "train/read me.txt")
    put(tmp_path, "train/a/._1.png", "train/.cache/1.png", ".DS_Store", "train/a/.thumbs/1.png")
    put(tmp_path, "train/@eaDir/a.png", "train/a/Thumbs.db", "#recycle/a/1.png", "train/LOST.DIR/x")
    os.mkfifo(tmp_path / "train/a/pipe.png")
    (tmp_path / "train/a/broken.png").symlink_to("gone.png")
    scanned = scan("folder", tmp_path, "train")
    assert rows(tmp_path) == [("train/a/1.png", 0), ("train/a/broken.png", 0)]
    assert scanned.manifest.table["size_bytes"].to_list() == [5, 0]
    outside, heic, others, broken = scanned.warnings
    assert outside.endswith("outside of any class folder: 2 (for example train/2.png)")
    assert others.endswith("not images by their names: 4 (for example train/a/archive.tar)")
    assert "`pip install pillow-heif` lets clinit read (HEIC): 2 (for example train/a/2" in heic
    at_the_root, inside = scanned.notes
    assert at_the_root.endswith("(thumbnails, bins), left out: 2 (for example #recycle)")
    assert inside.endswith("left out: 6 (for example train/.cache)")
    assert broken == "images that are broken links: 1 (for example train/a/broken.png)"
    with pytest.raises(ManifestError, match="not a complete train split") as refusal:
        scan("folder", tmp_path, "train", strict=True)
    assert broken in str(refusal.value)


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


def test_links_under_the_root_are_followed(tmp_path: Path) -> None:
    put(tmp_path, "train/a/1.png", "store/22.png", "store/more/333.png")
    (tmp_path / "train/a/2.png").symlink_to("../../store/22.png")
    (tmp_path / "train/b").symlink_to(tmp_path / "store/more")
    scanned = scan("folder", tmp_path, "train")
    expected = [("train/a/1.png", 5), ("train/a/2.png", 6), ("train/b/333.png", 7)]
    assert scanned.manifest.table.select("path", "size_bytes").rows() == expected


@pytest.mark.parametrize("link", ["train/a/2.png", "train/b", "val", "train/a/deep", "train/a/x"])
def test_a_link_that_leaves_the_root_is_refused_by_name(tmp_path: Path, link: str) -> None:
    root = put(tmp_path / "root", "train/a/1.png")
    put(tmp_path, "outside/c/2.png", "root2/3.png")
    target = tmp_path / ("outside/c/2.png" if link.endswith("png") else "outside")
    (root / link).symlink_to(target)
    with pytest.raises(ManifestError, match=f"{link} is a link to .*outside.*, outside of the"):
        scan("folder", root, "train")


@pytest.mark.parametrize(
    ("links", "fact"),
    [
        ({"train/a/again": ".."}, "links back to a folder above it"),
        ({"train/a/to_b": "../b", "train/b/to_a": "../a"}, "links back to a folder above it"),
        ({"train/a/self.png": "self.png"}, "cannot read .*(symbolic links|loop)"),
        ({"train/c": "c"}, "cannot read .*(symbolic links|loop)"),
    ],
)
def test_a_link_that_never_ends_is_refused(
    tmp_path: Path, links: dict[str, str], fact: str
) -> None:
    put(tmp_path, "train/a/1.png", "train/b/1.png")
    for link, target in links.items():
        (tmp_path / link).symlink_to(target)
    with pytest.raises(ManifestError, match=fact):
        scan("folder", tmp_path, "train")


@pytest.mark.parametrize("name", [b"train/a/\xff.png", b"train/\xff/1.png"])
def test_a_name_that_is_not_utf8_is_refused_by_name(tmp_path: Path, name: bytes) -> None:
    put(tmp_path, "train/a/1.png", os.fsdecode(name))
    with pytest.raises(ManifestError) as refusal:
        scan("folder", tmp_path, "train")
    assert name.decode("utf-8", "backslashreplace") in str(refusal.value)
    str(refusal.value).encode()  # can be printed


FOLDER = ("folder", ".", "train")


@pytest.mark.parametrize(
    ("names", "dataset", "root", "split", "facts"),
    [
        ([], "folder", "gone", "train", ["no folder at", "found nothing"]),
        (["x.tar"], "folder", "x.tar", "train", ["found a file"]),
        (["1.png"], *FOLDER, ["contains images (1.png) but no class folder"]),
        (["elk/1.png", "kitchen/tin/1.png"], *FOLDER, ["contains no image but folders (tin)"]),
        (["birds/gull/1.png", "elks/old/1.png"], *FOLDER, ["birds and ", "elks contain no images"]),
        (["cat/1.png", "dev/x/1.png"], *FOLDER, ["dev contains no image but"]),
        (["train_images/1.png", "test_images/1.png"], *FOLDER, ["images contain images but no c"]),
        (["train/1.png"], *FOLDER, ["train contains images but no class folder"]),
        (["a/1.HEIC"], *FOLDER, ["pillow-heif` lets clinit read (HEIC): 1"]),
        (["a/1.png"], "imagenet1k", ".", "test", ["imagenet1k has no test images"]),
        (
            ["train/cat/1.png", "ILSVRC2012_img_val/ILSVRC2012_val_00000001.JPEG", "meta.mat"],
            *("imagenet1k", ".", "val"),
            [
                "class-folders: ILSVRC2012_img_val with no class folder of ImageNet-1K",
                "imagenet-kaggle: no LOC_val_solution.csv in ., ILSVRC, devkit/data,",
                "imagenet-devkit: no ILSVRC2012_validation_ground_truth.txt in ., ILSVRC,",
                "found ILSVRC2012_img_val/, meta.mat, train/",
            ],
        ),
        (
            ["train/n01440764/n01440764.tar"],
            *("imagenet1k", ".", "train", ["no train image", "train/n01440764/n01440764.tar"]),
        ),
    ],
)
def test_what_does_not_fit_is_told_with_what_was_looked_for_and_found(
    tmp_path: Path, names: list[str], dataset: str, root: str, split: str, facts: list[str]
) -> None:
    put(tmp_path, *names)
    with pytest.raises(ManifestError) as refusal:
        scan(dataset, tmp_path / root, split)
    assert [fact for fact in facts if fact not in str(refusal.value)] == []

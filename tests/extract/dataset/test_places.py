from pathlib import Path

import pytest

from clinit.errors import ManifestError
from clinit.extract.dataset.known import read_dataset
from clinit.extract.dataset.scan import available_splits, scan

CLASSES = read_dataset("places365").classes
AIRFIELD, CHURCH, FLORIST = 0, 91, 147


def put(root: Path, *names: str) -> None:
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(b"x")


def put_lists(folder: Path, truth: dict[str, int], extra: str = "") -> None:
    folder.mkdir(parents=True, exist_ok=True)
    categories = "".join(f"/{c[0]}/{c} {i}\n" for i, c in enumerate(CLASSES))
    (folder / "categories_places365.txt").write_text(categories + extra)
    (folder / "places365_val.txt").write_text("".join(f"{k} {v}\n" for k, v in truth.items()))


def rows(root: Path, split: str) -> list[tuple[str, int]]:
    return scan("places365", root, split).manifest.table.select("path", "label").rows()


@pytest.mark.parametrize("above", ["", "places365_standard/"])
@pytest.mark.parametrize("split", ["train", "val"])
def test_the_easy_layout_writes_nested_names_with_a_hyphen(
    tmp_path: Path, above: str, split: str
) -> None:
    folder = f"{above}{split}"
    put(tmp_path, f"{folder}/church-outdoor/1.jpg", f"{folder}/airfield/1.jpg")
    assert rows(tmp_path, split) == [
        (f"{folder}/airfield/1.jpg", AIRFIELD),
        (f"{folder}/church-outdoor/1.jpg", CHURCH),
    ]
    assert scan("places365", tmp_path, split).layout == "places-easy"


def test_the_easy_layout_takes_nested_folders_too(tmp_path: Path) -> None:
    put(tmp_path, "train/church/outdoor/1.jpg", "train/church-outdoor/1.jpg", "train/church/2.jpg")
    scanned = scan("places365", tmp_path, "train")
    assert scanned.manifest.table["label"].to_list() == [CHURCH, CHURCH]
    assert scanned.manifest.table["class_name"].to_list() == ["church/outdoor"] * 2
    assert scanned.warnings[0] == (
        "files left out, outside of any class folder: 1 (for example train/church/2.jpg)"
    )


def test_counts_of_places_are_checked(tmp_path: Path) -> None:
    put(tmp_path, "val/airfield/1.jpg", "val/track-outdoor/1.jpg")
    assert scan("places365", tmp_path, "val").warnings == (
        "folders left out, no class of Places365-Standard: 1 (for example val/track-outdoor)",
        "1 images in val, expected 36,500 (36,499 missing)",
        "364 of 365 classes have no image in val (for example airplane_cabin)",
    )


@pytest.mark.parametrize("folder", ["data_256_standard", "data_256", "data_large"])
def test_the_original_training_folders_are_nested_below_letters(
    tmp_path: Path, folder: str
) -> None:
    put(
        tmp_path,
        f"{folder}/a/airfield/00000001.jpg",
        f"{folder}/c/church/outdoor/00000001.jpg",
        f"{folder}/c/church/elsewhere/00000001.jpg",
        f"{folder}/c/cathedral/00000001.jpg",
    )
    assert rows(tmp_path, "train") == [
        (f"{folder}/a/airfield/00000001.jpg", AIRFIELD),
        (f"{folder}/c/church/outdoor/00000001.jpg", CHURCH),
    ]
    scanned = scan("places365", tmp_path, "train")
    assert scanned.layout == "places-original-train"
    assert scanned.warnings[0] == (
        f"folders left out, no class of Places365-Standard: 2 (for example {folder}/c/cathedral)"
    )


@pytest.mark.parametrize("folder", ["val_256", "val_large"])
@pytest.mark.parametrize("lists", [".", "filelist_places365-standard"])
def test_the_original_validation_images_are_flat_with_lists(
    tmp_path: Path, folder: str, lists: str
) -> None:
    first, second, third = (f"Places365_val_{i:08d}.jpg" for i in (1, 2, 3))
    put(tmp_path, f"{folder}/{first}", f"{folder}/{second}", f"{folder}/{third}")
    put_lists(tmp_path / lists, {first: FLORIST, second: AIRFIELD, third: FLORIST})
    assert rows(tmp_path, "val") == [
        (f"{folder}/{second}", AIRFIELD),
        (f"{folder}/{first}", FLORIST),
        (f"{folder}/{third}", FLORIST),
    ]
    assert scan("places365", tmp_path, "val").layout == "places-original-val"


def test_easy_and_original_form_give_the_same_labels(tmp_path: Path) -> None:
    for label, name in enumerate(CLASSES):
        hyphens = name.replace("/", "-")
        put(tmp_path, f"easy/train/{hyphens}/{label:03d}.jpg")
        put(tmp_path, f"original/data_256_standard/{name[0]}/{name}/{label:03d}.jpg")
    for form in ("easy", "original"):
        found = rows(tmp_path / form, "train")
        assert [int(Path(path).stem) for path, _ in found] == [label for _, label in found]
        assert len(found) == 365


def test_small_images_come_before_large_ones_and_that_is_said(tmp_path: Path) -> None:
    put(tmp_path, "data_large/a/airfield/1.jpg", "data_256_standard/a/airfield/1.jpg")
    scanned = scan("places365", tmp_path, "train")
    assert scanned.manifest.table["path"].to_list() == ["data_256_standard/a/airfield/1.jpg"]
    assert scanned.warnings[0] == "data_large was left out: data_256_standard comes first"


def test_categories_are_matched_by_name(tmp_path: Path) -> None:
    put(tmp_path, "val_256/1.jpg", "val_256/2.jpg")
    put_lists(tmp_path, {"1.jpg": 500, "2.jpg": 0}, extra="/s/stop_sign 367\n/c/church/outdoor 500")
    assert rows(tmp_path, "val") == [("val_256/2.jpg", AIRFIELD), ("val_256/1.jpg", CHURCH)]


@pytest.mark.parametrize("number", [367, 900])
def test_a_number_that_is_no_class_is_refused(tmp_path: Path, number: int) -> None:
    put(tmp_path, "val_256/1.jpg")
    put_lists(tmp_path, {"1.jpg": number}, extra="/s/stop_sign 367\n")
    with pytest.raises(ManifestError, match=rf"gives 1\.jpg the number {number}, which"):
        scan("places365", tmp_path, "val")


@pytest.mark.parametrize("line", ["1.jpg", "1.jpg x", "7"])
def test_a_damaged_line_is_refused_with_its_number(tmp_path: Path, line: str) -> None:
    put(tmp_path, "val_256/1.jpg")
    put_lists(tmp_path, {"1.jpg": 0})
    (tmp_path / "places365_val.txt").write_text(f"1.jpg 0\n{line}\n")
    with pytest.raises(ManifestError, match="in line 2, expected a name and a number"):
        scan("places365", tmp_path, "val")


def test_lists_and_images_that_differ_are_counted(tmp_path: Path) -> None:
    put(tmp_path, "val_256/1.jpg", "val_256/2.jpg")
    put_lists(tmp_path, {"1.jpg": 0, "3.jpg": 1, "4.jpg": 1})
    assert scan("places365", tmp_path, "val").warnings[:2] == (
        "images left out, without a line in places365_val.txt: 1 (for example val_256/2.jpg)",
        "lines of places365_val.txt without an image: 2 (for example 3.jpg)",
    )


def test_splits_of_the_original_form_are_found_each_by_itself(tmp_path: Path) -> None:
    put(tmp_path, "val_large/1.jpg")
    assert available_splits("places365", tmp_path) == ()
    put_lists(tmp_path, {"1.jpg": 0})
    assert available_splits("places365", tmp_path) == ("val",)
    put(tmp_path, "data_large/a/airfield/1.jpg")
    assert available_splits("places365", tmp_path) == ("train", "val")

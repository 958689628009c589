from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from scipy.io import savemat

from clinit.errors import ManifestError
from clinit.extract.dataset.known import read_dataset
from clinit.extract.dataset.scan import Scan, scan

CLASSES = read_dataset("imagenet1k").classes
# Label of the images 1, 2, 3, ... of the miniature validation split.
TRUTH = (7, 999, 0, 7)


def name(number: int) -> str:
    return f"ILSVRC2012_val_{number:08d}"


def put_images(folder: Path, numbers: range = range(1, len(TRUTH) + 1)) -> None:
    folder.mkdir(parents=True)
    for number in numbers:
        (folder / f"{name(number)}.JPEG").write_bytes(b"x" * number)


def put_csv(folder: Path, lines: list[str]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    text = "\n".join(["ImageId,PredictionString", *lines])
    (folder / "LOC_val_solution.csv").write_text(text + "\n")


def csv_lines(truth: tuple[int, ...] = TRUTH) -> list[str]:
    # Two boxes in each; the list is not in the order of the images.
    boxes = "{0} 85 1 499 272 {0} 1 2 3 4 "
    return [
        f"{name(i)},{boxes.format(CLASSES[label])}"
        for i, label in reversed(list(enumerate(truth, start=1)))
    ]


def ids_of_labels() -> np.ndarray:
    """ILSVRC2012_ID of each label, in no order at all, as in the real kit."""
    return np.random.default_rng(0).permutation(1000) + 1


def put_devkit(folder: Path, truth: tuple[int, ...] = TRUTH) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    ids = ids_of_labels()
    synsets = [(float(ids[label]), CLASSES[label], 0.0) for label in np.argsort(ids)]
    synsets += [(1001.0, "n00001740", 3.0), (1002.0, "n00002137", 2.0)]  # inner nodes
    kind = [("ILSVRC2012_ID", "O"), ("WNID", "O"), ("num_children", "O")]
    table = np.array([tuple(row) for row in synsets], dtype=kind)
    savemat(folder / "meta.mat", {"synsets": table.reshape(-1, 1)})
    lines = [str(ids[label]) for label in truth]
    (folder / "ILSVRC2012_validation_ground_truth.txt").write_text("\n".join(lines) + "\n")


def labels(scanned: Scan) -> dict[str, int]:
    table = scanned.manifest.table
    return {Path(p).stem: label for p, label in table.select("path", "label").iter_rows()}


EXPECTED = {name(i): label for i, label in enumerate(TRUTH, start=1)}
COUNTS = (
    "4 images in val, expected 50,000 (49,996 missing)",
    "997 of 1,000 classes have no image in val (for example n01443537)",
)


@pytest.mark.parametrize("folder", ["train", "ILSVRC/Data/CLS-LOC/train", "ILSVRC2012_img_train"])
def test_training_images_lie_in_folders_of_synsets(tmp_path: Path, folder: str) -> None:
    for label in (0, 500):
        (tmp_path / folder / CLASSES[label]).mkdir(parents=True)
        (tmp_path / folder / CLASSES[label] / f"{CLASSES[label]}_1.JPEG").touch()
    scanned = scan("imagenet1k", tmp_path, "train")
    assert scanned.manifest.table.select("path", "label").rows() == [
        (f"{folder}/{CLASSES[0]}/{CLASSES[0]}_1.JPEG", 0),
        (f"{folder}/{CLASSES[500]}/{CLASSES[500]}_1.JPEG", 500),
    ]


@pytest.mark.parametrize("form", ["kaggle", "devkit"])
@pytest.mark.parametrize(
    ("folder", "lists"),
    [
        ("val", "."),
        ("ILSVRC/Data/CLS-LOC/val", "ILSVRC"),
        ("ILSVRC2012_img_val", "devkit/data"),
        ("val", "ILSVRC2012_devkit_t12/data"),
    ],
)
def test_a_list_labels_flat_images(tmp_path: Path, form: str, folder: str, lists: str) -> None:
    put_images(tmp_path / folder)
    if form == "kaggle":
        put_csv(tmp_path / lists, csv_lines())
    else:
        put_devkit(tmp_path / lists)
    scanned = scan("imagenet1k", tmp_path, "val")
    assert scanned.layout == f"imagenet-{form}"
    assert labels(scanned) == EXPECTED
    assert scanned.warnings == COUNTS
    assert scanned.manifest.table.row(0) == (f"{folder}/{name(3)}.JPEG", 0, CLASSES[0], 3)


@pytest.mark.parametrize("form", ["kaggle", "kit"])
def test_images_without_a_line_and_lines_without_an_image_are_counted(
    tmp_path: Path, form: str
) -> None:
    put_images(tmp_path / "val", range(3, 8))
    if form == "kaggle":
        put_csv(tmp_path, csv_lines())
        source, missing = "LOC_val_solution.csv", name(1)
    else:
        put_devkit(tmp_path)
        source, missing = "ILSVRC2012_validation_ground_truth.txt", "1"
    scanned = scan("imagenet1k", tmp_path, "val")
    assert labels(scanned) == {name(3): 0, name(4): 7}
    assert scanned.warnings[:2] == (
        f"images left out, without a line in {source}: 3 (for example val/{name(5)}.JPEG)",
        f"lines of {source} without an image: 2 (for example {missing})",
    )
    with pytest.raises(ManifestError, match=f"without a line in {source}: 3"):
        scan("imagenet1k", tmp_path, "val", strict=True)


def test_other_files_and_folders_beside_flat_images_are_counted(tmp_path: Path) -> None:
    put_images(tmp_path / "val")
    put_images(tmp_path / "ILSVRC2012_img_val")
    put_csv(tmp_path, csv_lines())
    (tmp_path / "val/valprep.sh").touch()
    (tmp_path / "val/old").mkdir()
    assert scan("imagenet1k", tmp_path, "val").warnings[:3] == (
        "ILSVRC2012_img_val was left out: val comes first",
        "folders left out, among the images: 1 (for example val/old)",
        "files left out, not images by their names: 1 (for example val/valprep.sh)",
    )


KAGGLE, TRUTHS = "LOC_val_solution.csv", "ILSVRC2012_validation_ground_truth.txt"


@pytest.mark.parametrize(
    ("source", "content", "fact"),
    [
        (KAGGLE, f"ImageId,PredictionString\n{name(1)},n99999999 1 2 3 4", "the class 'n99999999'"),
        (KAGGLE, f"ImageId,PredictionString\n{name(1)},", f"{name(1)} the class ''"),
        (KAGGLE, "\n".join(["ImageId,PredictionString", *csv_lines() * 2]), f"{name(4)} twice"),
        *((KAGGLE, text, "is no table") for text in ("", "a,b\n1,2\n", "\x00\x01")),
        *(
            (TRUTHS, f"1\n{line}\n", f"has '{line}' in line 2")
            for line in ("0", "1001", "1003", "n01440764", "1.5")
        ),
        *(("meta.mat", text, "table of synsets") for text in ("", "no MATLAB", "\0" * 200)),
    ],
)
def test_a_damaged_list_is_refused(tmp_path: Path, source: str, content: str, fact: str) -> None:
    put_images(tmp_path / "val")
    if source != KAGGLE:
        put_devkit(tmp_path)
    (tmp_path / source).write_text(content)
    with pytest.raises(ManifestError, match=fact) as refusal:
        scan("imagenet1k", tmp_path, "val")
    assert source in str(refusal.value)
    assert "Fetch this file again" in refusal.value.remedy


PLACES = read_dataset("places365").classes
AIRFIELD, CHURCH, FLORIST = 0, 91, 147


def put(root: Path, *names: str) -> None:
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(b"x")


def put_lists(folder: Path, truth: dict[str, int], extra: str = "") -> None:
    folder.mkdir(parents=True, exist_ok=True)
    categories = "".join(f"/{c[0]}/{c} {i}\n" for i, c in enumerate(PLACES))
    (folder / "categories_places365.txt").write_text(categories + extra)
    (folder / "places365_val.txt").write_text("".join(f"{k} {v}\n" for k, v in truth.items()))


def rows(root: Path, split: str) -> list[tuple[str, int]]:
    return scan("places365", root, split).manifest.table.select("path", "label").rows()


@pytest.mark.parametrize("folder", ["train", "places365_standard/val"])
def test_the_easy_layout_writes_nested_names_with_a_hyphen(tmp_path: Path, folder: str) -> None:
    split = folder.rpartition("/")[2]
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


@pytest.mark.parametrize(
    ("folder", "lists"), [("val_256", "."), ("val_large", "filelist_places365-standard")]
)
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
    for label, name in enumerate(PLACES):
        hyphens = name.replace("/", "-")
        put(tmp_path, f"easy/train/{hyphens}/{label:03d}.jpg")
        put(tmp_path, f"original/data_256_standard/{name[0]}/{name}/{label:03d}.jpg")
    for form in ("easy", "original"):
        found = rows(tmp_path / form, "train")
        assert [int(Path(path).stem) for path, _ in found] == [label for _, label in found]
        assert len(found) == 365


def test_categories_are_matched_by_name(tmp_path: Path) -> None:
    put(tmp_path, "val_256/1.jpg", "val_256/2.jpg")
    put_lists(tmp_path, {"1.jpg": 500, "2.jpg": 0}, extra="/s/stop_sign 367\n/c/church/outdoor 500")
    assert rows(tmp_path, "val") == [("val_256/2.jpg", AIRFIELD), ("val_256/1.jpg", CHURCH)]


@pytest.mark.parametrize(
    ("line", "fact"),
    [
        ("2.jpg 367", "2.jpg the number 367"),
        ("2.jpg 900", "2.jpg the number 900"),
        *((line, "in line 2, expected a name and a number") for line in ("1.jpg", "1.jpg x", "7")),
    ],
)
def test_a_damaged_list_of_places_is_refused(tmp_path: Path, line: str, fact: str) -> None:
    put(tmp_path, "val_256/1.jpg")
    put_lists(tmp_path, {"1.jpg": 0}, extra="/s/stop_sign 367\n")
    (tmp_path / "places365_val.txt").write_text(f"1.jpg 0\n{line}\n")
    with pytest.raises(ManifestError, match=fact):
        scan("places365", tmp_path, "val")

"""ImageNet-1K and Places365 as they lie on disks: class folders, or flat images with lists."""

from pathlib import Path

import numpy as np
import pytest
from scipy.io import savemat

from clinit.errors import ManifestError
from clinit.extract.dataset.known import read_dataset
from clinit.extract.dataset.scan import scan

CLASSES, PLACES = read_dataset("imagenet1k").classes, read_dataset("places365").classes
# Label of the images 1, 2, 3, ... of the miniature validation split.
TRUTH = (7, 999, 0, 7)
KAGGLE, TRUTHS = "LOC_val_solution.csv", "ILSVRC2012_validation_ground_truth.txt"
AIRFIELD, CHURCH, FLORIST = 0, 91, 147


def put(root: Path, *names: str) -> None:
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(b"x")


def rows(dataset: str, root: Path, split: str) -> list[tuple[str, int]]:
    return scan(dataset, root, split).manifest.table.select("path", "label").rows()


def name(number: int) -> str:
    return f"ILSVRC2012_val_{number:08d}"


def put_images(folder: Path, numbers: range = range(1, len(TRUTH) + 1)) -> None:
    put(folder, *(f"{name(number)}.JPEG" for number in numbers))


# Two boxes in each; the list is not in the order of the images.
CSV = [
    f"{name(number)},{CLASSES[label]} 85 1 499 272 {CLASSES[label]} 1 2 3 4 "
    for number, label in reversed(list(enumerate(TRUTH, start=1)))
]


def put_lists(folder: Path, form: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    if form == "kaggle":
        (folder / KAGGLE).write_text("\n".join(["ImageId,PredictionString", *CSV]))
        return
    ids = np.random.default_rng(0).permutation(1000) + 1  # in no order at all, as in the real kit
    synsets = [(float(ids[label]), CLASSES[label], 0.0) for label in np.argsort(ids)]
    synsets += [(1001.0, "n00001740", 3.0), (1002.0, "n00002137", 2.0)]  # inner nodes
    kind = [("ILSVRC2012_ID", "O"), ("WNID", "O"), ("num_children", "O")]
    table = np.array([tuple(row) for row in synsets], dtype=kind)
    savemat(folder / "meta.mat", {"synsets": table.reshape(-1, 1)})
    (folder / TRUTHS).write_text("".join(f"{ids[label]}\n" for label in TRUTH))


@pytest.mark.parametrize("folder", ["train", "ILSVRC/Data/CLS-LOC/train", "ILSVRC2012_img_train"])
def test_training_images_lie_in_folders_of_synsets(tmp_path: Path, folder: str) -> None:
    names = {label: f"{folder}/{CLASSES[label]}/{CLASSES[label]}_1.JPEG" for label in (0, 500)}
    put(tmp_path, *names.values())
    assert dict(rows("imagenet1k", tmp_path, "train")) == {n: label for label, n in names.items()}


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
    put_lists(tmp_path / lists, form)
    scanned = scan("imagenet1k", tmp_path, "val")
    assert scanned.layout == f"imagenet-{form}"
    paths = {number: f"{folder}/{name(number)}.JPEG" for number in range(1, 5)}
    expected = {paths[number]: label for number, label in enumerate(TRUTH, start=1)}
    assert dict(rows("imagenet1k", tmp_path, "val")) == expected
    assert scanned.warnings == (
        "4 images in val, expected 50,000 (49,996 missing)",
        "997 of 1,000 classes have no image in val (for example n01443537)",
    )
    assert scanned.manifest.table.row(0) == (paths[3], 0, CLASSES[0], 1)


@pytest.mark.parametrize(
    ("form", "source", "missing"), [("kaggle", KAGGLE, name(1)), ("devkit", TRUTHS, "1")]
)
def test_what_is_without_a_line_or_an_image_is_counted(
    tmp_path: Path, form: str, source: str, missing: str
) -> None:
    put_images(tmp_path / "val", range(3, 8))
    put_images(tmp_path / "ILSVRC2012_img_val")
    put(tmp_path / "val", "valprep.sh", "old/x")
    put_lists(tmp_path, form)
    scanned = scan("imagenet1k", tmp_path, "val")
    assert scanned.manifest.table["label"].to_list() == [0, 7]
    assert scanned.warnings[:5] == (
        "ILSVRC2012_img_val was left out: val comes first",
        f"images left out, without a line in {source}: 3 (for example val/{name(5)}.JPEG)",
        f"lines of {source} without an image: 2 (for example {missing})",
        "folders left out, among the images: 1 (for example val/old)",
        "files left out, not images by their names: 1 (for example val/valprep.sh)",
    )


@pytest.mark.parametrize(
    ("source", "content", "fact"),
    [
        (KAGGLE, f"ImageId,PredictionString\n{name(1)},n99999999 1 2", "the class 'n99999999'"),
        (KAGGLE, f"ImageId,PredictionString\n{name(1)},", f"{name(1)} the class ''"),
        (KAGGLE, "\n".join(["ImageId,PredictionString", *CSV * 2]), f"{name(4)} twice"),
        *((KAGGLE, text, "is not a table") for text in ("", "a,b\n1,2\n", "\x00\x01")),
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
        put_lists(tmp_path, "devkit")
    (tmp_path / source).write_text(content)
    with pytest.raises(ManifestError, match=f"{source}.* {fact}"):
        scan("imagenet1k", tmp_path, "val")


@pytest.mark.parametrize(
    ("names", "left_out", "layout"),
    [
        ("train/church-outdoor/1.jpg train/airfield/1.jpg", "", "places-easy"),
        ("train/church/outdoor/1.jpg train/church/2.jpg", "train/church/2.jpg", "places-easy"),
        (
            "data_256/c/church/outdoor/1.jpg data_256/c/church/elsewhere/1.jpg",
            *("data_256/c/church/elsewhere", "places-original-train"),
        ),
        ("data_large/a/airfield/1.jpg", "", "places-original-train"),
    ],
)
def test_places_lie_in_nested_folders_or_with_hyphens(
    tmp_path: Path, names: str, left_out: str, layout: str
) -> None:
    put(tmp_path, *names.split())
    scanned = scan("places365", tmp_path, "train")
    expected = {AIRFIELD: "airfield", CHURCH: "church/outdoor"}
    for path, label, class_name, _ in scanned.manifest.table.iter_rows():
        assert expected[label] == class_name
        assert class_name.replace("/", "") in path.replace("/", "").replace("-", "")
    assert scanned.layout == layout
    assert left_out in scanned.warnings[0]


def put_places(folder: Path, lines: list[str]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    categories = [f"/{each[0]}/{each} {label}" for label, each in enumerate(PLACES)]
    categories += ["/s/stop_sign 367", "/c/church/outdoor 500"]
    (folder / "categories_places365.txt").write_text("\n".join(categories))
    (folder / "places365_val.txt").write_text("\n".join(lines))


@pytest.mark.parametrize(
    ("folder", "lists"), [("val_256", "."), ("val_large", "filelist_places365-standard")]
)
def test_the_original_validation_images_are_flat_with_lists(
    tmp_path: Path, folder: str, lists: str
) -> None:
    put(tmp_path, *(f"{folder}/{number}.jpg" for number in range(3)))
    put_places(tmp_path / lists, ["0.jpg 147", "1.jpg 0", "2.jpg 500"])
    assert rows("places365", tmp_path, "val") == [
        (f"{folder}/1.jpg", AIRFIELD),
        (f"{folder}/2.jpg", CHURCH),  # matched by name
        (f"{folder}/0.jpg", FLORIST),
    ]
    assert scan("places365", tmp_path, "val").layout == "places-original-val"

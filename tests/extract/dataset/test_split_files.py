import pytest

from clinit.extract.dataset.containers import SplitFiles, split_files, split_folders


@pytest.mark.parametrize(
    ("path", "split"),
    [
        ("train-00000-of-00012.parquet", "train"),
        ("data/validation-00000-of-00001.parquet", "val"),
        ("imagenet1k-train-0001.tar", "train"),
        ("val/00000.tar", "val"),
        ("scenes_dev_3.tar", "val"),
        ("plain_text/test-00000.parquet", "val"),
        ("TRAIN/part0.tar", "train"),
        ("validation/from-train-split.tar", "train"),
        ("testing/train/0.tar", "train"),
    ],
)
def test_the_nearest_word_in_a_path_says_the_split(path: str, split: str) -> None:
    assert {name: files.paths for name, files in split_files([path]).items()} == {split: (path,)}


def test_files_without_any_word_of_a_split_are_train() -> None:
    paths = ["b/00001.tar", "latest/00000.tar", "trainers.tar"]
    assert split_files(paths) == {"train": SplitFiles("train", tuple(sorted(paths)))}


def test_no_files_are_no_splits() -> None:
    assert split_files([]) == {}


def test_test_files_are_val_where_there_is_no_validation() -> None:
    found = split_files(["train.tar", "test.tar", "unlabelled.tar"])
    assert found["val"].part == "test"
    assert found["val"].warnings == found["train"].warnings
    assert found["train"].warnings == (
        "unlabelled.tar was left out: no part of its path names a split",
    )


def test_validation_comes_before_test() -> None:
    found = split_files(["train.tar", "test.tar", "valid.tar"])["val"]
    assert found.paths == ("valid.tar",)
    assert found.warnings == ("the files of test were left out: validation comes first",)


def test_test_files_are_taken_alone_where_they_are_asked_for() -> None:
    found = split_files(["train.tar", "test.tar", "valid.tar"], "test")
    assert found["test"].paths == ("test.tar",)
    assert found["test"].warnings == ()
    assert found["train"].paths == ("train.tar",)
    assert "val" not in found


def test_folders_are_in_the_order_of_the_words_that_name_splits() -> None:
    names = ["test", "Valid", "val", "train", "cat", "training"]
    assert split_folders(names, "val") == {
        "train": ("train", "training"),
        "val": ("Valid", "val", "test"),
    }
    assert split_folders(names, "test") == {"train": ("train", "training"), "test": ("test",)}

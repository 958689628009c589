from __future__ import annotations

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from clinit.errors import ManifestError
from clinit.extract.dataset.containers import (
    LABEL_SCHEMA,
    SplitFiles,
    checked_names,
    classes_of,
    labels_of,
    split_files,
    split_folders,
)


def told(*rows: tuple[int | None, str | None]) -> pl.DataFrame:
    return pl.DataFrame(list(rows), schema=LABEL_SCHEMA, orient="row")


def test_names_alone_are_sorted_by_code_point() -> None:
    rows = told((None, "bee"), (None, "Ant"), (None, "ant"), (None, "bee"))
    assert classes_of(rows, "it") == ("Ant", "ant", "bee")
    assert labels_of(rows, ("Ant", "ant", "bee"), "it").to_list() == [2, 0, 1, 2]


def test_numbers_are_labels_and_their_own_names() -> None:
    rows = told((2, None), (0, None))
    assert classes_of(rows, "it") == ("0", "1", "2")
    assert labels_of(rows, ("0", "1", "2"), "it").to_list() == [2, 0]


def test_a_number_may_have_a_name() -> None:
    assert classes_of(told((1, "bee"), (0, None), (1, None)), "it") == ("0", "bee")


def test_rows_without_a_label_have_none() -> None:
    rows = told((None, None), (-1, None), (-1, "hidden"), (0, "ant"))
    assert classes_of(rows, "it") == ("ant",)
    assert labels_of(rows, ("ant",), "it").to_list() == [None, None, None, 0]


@given(st.lists(st.one_of(st.integers(0, 20), st.none()), max_size=30))
def test_numbers_come_out_as_they_are(numbers: list[int | None]) -> None:
    rows = told(*((number, None) for number in numbers))
    classes = classes_of(rows, "it")
    assert len(classes) == max((n for n in numbers if n is not None), default=-1) + 1
    assert labels_of(rows, classes, "it").to_list() == numbers


@given(st.lists(st.text(st.characters(exclude_categories=["Cs"]), min_size=1), max_size=20))
def test_names_come_out_as_they_are(names: list[str]) -> None:
    rows = told(*((None, name) for name in names))
    classes = classes_of(rows, "it")
    assert [classes[label] for label in labels_of(rows, classes, "it")] == names


@pytest.mark.parametrize(
    ("rows", "problem"),
    [
        ([(0, None), (None, "bee")], "some labels of it are numbers, some are names ('bee')"),
        ([(0, "ant"), (0, "wasp")], "label 0 of it has two names, ant and wasp"),
        ([(0, "ant"), (1, "ant")], "it call two classes 'ant'"),
        ([(0, "1"), (1, None)], "it call two classes '1'"),
        ([(10**15, None)], "a label of it is 1,000,000,000,000,000, but labels must lie in"),
        ([(None, "x" * 5000)], "it tell of a class name of 5,000 characters, expected 1 to 4,096"),
    ],
)
def test_labels_that_contradict_are_refused(
    rows: list[tuple[int | None, str | None]], problem: str
) -> None:
    with pytest.raises(ManifestError) as caught:
        classes_of(told(*rows), "it")
    assert problem in str(caught.value)


def test_a_label_that_is_no_class_is_refused() -> None:
    with pytest.raises(ManifestError, match=r"a label of a\.tar is 3, .* must lie in \[0, 3\)"):
        labels_of(told((3, None)), ("ant", "bee", "cat"), "a.tar")
    with pytest.raises(ManifestError, match=r"a\.tar name a class 'dog', which is none of the 1"):
        labels_of(told((None, "dog")), ("ant",), "a.tar")


def test_names_that_are_none_are_refused() -> None:
    with pytest.raises(ManifestError, match="tell of a class name without a character"):
        checked_names(("ant", ""), "it")


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

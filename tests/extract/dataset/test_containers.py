"""Which split a container belongs to, and which class its rows say."""

import polars as pl
import pytest
from hypothesis import given, strategies as st

from clinit.errors import ManifestError
from clinit.extract.dataset.containers import classes_of, labels_of, split_files
from clinit.extract.dataset.manifest import LABEL_SCHEMA

Row = tuple[int | None, str | None]


def told(*rows: Row) -> pl.DataFrame:
    return pl.DataFrame(list(rows), schema=LABEL_SCHEMA, orient="row")


@pytest.mark.parametrize(
    ("rows", "classes", "labels"),
    [
        ([(None, "bee"), (None, "Ant"), (None, "ant")], ("Ant", "ant", "bee"), [2, 0, 1]),
        ([(1, "bee"), (0, None), (1, None)], ("0", "bee"), [1, 0, 1]),
        ([(None, None), (-1, None), (-1, "no"), (0, "ant")], ("ant",), [None, None, None, 0]),
    ],
)
def test_numbers_are_labels_and_names_alone_are_sorted(
    rows: list[Row], classes: tuple[str, ...], labels: list[int | None]
) -> None:
    assert classes_of(told(*rows), "it") == classes
    assert labels_of(told(*rows), classes, "it").to_list() == labels


@given(st.lists(st.one_of(st.integers(0, 20), st.none()), max_size=30))
def test_numbers_come_out_as_they_are(numbers: list[int | None]) -> None:
    rows = told(*((number, None) for number in numbers))
    classes = classes_of(rows, "it")
    assert len(classes) == max((n for n in numbers if n is not None), default=-1) + 1
    assert labels_of(rows, classes, "it").to_list() == numbers


@pytest.mark.parametrize(
    ("rows", "fact"),
    [
        ([(0, None), (None, "bee")], "some are names ('bee')"),
        ([(0, "ant"), (0, "wasp")], "label 0 of it has two names, ant and wasp"),
        ([(0, "ant"), (1, "ant")], "two classes named 'ant'"),
        ([(0, "1"), (1, None)], "two classes named '1'"),
        ([(10**15, None)], "1,000,000,000,000,000"),
        ([(None, "x" * 5000)], "5,000 characters"),
        ([(None, "")], "0 characters"),
    ],
)
def test_labels_that_contradict_are_refused(rows: list[Row], fact: str) -> None:
    with pytest.raises(ManifestError) as caught:
        classes_of(told(*rows), "it")
    assert fact in str(caught.value)


@pytest.mark.parametrize(("row", "fact"), [((1, None), "1, but"), ((None, "dog"), "'dog'")])
def test_a_label_that_is_no_class_is_refused(row: Row, fact: str) -> None:
    with pytest.raises(ManifestError, match=rf"a\.tar.*{fact}"):
        labels_of(told(row), ("ant",), "a.tar")


@pytest.mark.parametrize(
    ("path", "split"),
    [
        ("train-00000-of-00012.parquet", "train"),
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
    assert split_files([path]) == {split: ((path,), ())}


def test_validation_comes_before_test_unless_test_is_asked_for() -> None:
    paths = ["train.tar", "test.tar", "valid.tar"]
    left = ("the files of test were left out: validation comes first",)
    assert split_files(paths)["val"] == (("valid.tar",), left)
    asked = {split: found for split, (found, _) in split_files(paths, "test").items()}
    assert asked == {"train": ("train.tar",), "test": ("test.tar",)}
    alone = split_files(["train.tar", "test.tar", "unlabelled.tar"])
    assert alone["val"] == (("test.tar",), alone["train"][1])
    assert "unlabelled.tar was left out" in alone["train"][1][0]

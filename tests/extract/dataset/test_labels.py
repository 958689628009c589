import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from clinit.errors import ManifestError
from clinit.extract.dataset.containers import LABEL_SCHEMA, checked_names, classes_of, labels_of


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

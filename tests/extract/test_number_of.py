import pytest

from clinit.extract.number_of import number_of


@pytest.mark.parametrize(
    ("count", "text"), [(0, "0 runs"), (1, "1 run"), (2, "2 runs"), (1_365, "1,365 runs")]
)
def test_a_noun_has_an_s_but_for_one(count: int, text: str) -> None:
    assert number_of(count, "run") == text


@pytest.mark.parametrize(("count", "text"), [(1, "1 class"), (2, "2 classes")])
def test_a_noun_that_ends_in_s_has_es(count: int, text: str) -> None:
    assert number_of(count, "class") == text

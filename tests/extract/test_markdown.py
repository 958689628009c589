import pytest

from clinit.extract.markdown import escaped, lines_of_table


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("campsite", "campsite"),
        ("ice_skating-rink", r"ice\_skating-rink"),
        ("[a](b) <i> | `c` **d**", r"\[a\](b) \<i\> \| \`c\` \*\*d\*\*"),
        ("https://x.org: www.x.org", r"https\://x.org: www\.x.org"),
        ("two\nlines\x1b", r"two\\x0alines\\x1b"),
    ],
)
def test_marks_links_and_control_characters_are_written_out(text: str, expected: str) -> None:
    assert escaped(text) == expected


def test_numbers_stand_at_the_right_of_a_table() -> None:
    found = lines_of_table(["a", "b"], [["x", "1"], ["y", "2"]], numbers=1)
    assert found == ["| a | b |", "| --- | ---: |", "| x | 1 |", "| y | 2 |"]

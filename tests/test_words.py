""""""

import pytest
from hypothesis import given, strategies as st

from clinit.words import LETTERS, byte_count, closest, contrast, escaped, size_text


@pytest.mark.parametrize(
    ("text", "size"),
    [("0", 0), ("12", 12), ("12 B", 12), ("1.5kB", 1500), ("2M", 2 * 10**6), ("3tb", 3 * 10**12)],
)
def test_a_size_is_a_number_with_or_without_a_unit(text: str, size: int) -> None:
    assert byte_count(text) == size


@pytest.mark.parametrize("text", ["", "many", "-1GB", "GB", "1 XB", "1e9", "1GiB"])
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=f"takes a size such as 20GB, got '{text}'"):
        byte_count(text)


@pytest.mark.parametrize("text", ["9" * 19, "9" * 309, "9" * 5000 + "TB"])
def test_a_size_that_nothing_has_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"takes a size of at most 9 EB, got '9{19,40}'$"):
        byte_count(text)


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1.00 kB"),
        (2_345_000, "2.35 MB"),
        (10**12, "1,000.00 GB"),
    ],
)
def test_a_size_is_written_in_the_largest_unit_of_which_it_has_one(size: int, text: str) -> None:
    assert size_text(size) == text


LONG = "resize 36 bicubic antialias, centre crop 32"


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        ("1", "2", ("1", "2")),
        ("absent", LONG, ("absent", "resize 36 bicubic antial…")),
        (LONG, LONG.replace("32", "28"), ("…re crop 32", "…re crop 28")),
        (LONG, LONG[:-3], ("…tre crop 32", "…tre crop")),
        ("a1" * 32, "b2" * 32, ("a1a1a1a1a1a1a1a1a1a1a1a1…", "b2b2b2b2b2b2b2b2b2b2b2b2…")),
    ],
)
def test_what_differs_is_shown(first: str, second: str, expected: tuple[str, str]) -> None:
    assert contrast(first, second) == expected


@given(st.text("ab", max_size=60), st.text("ab", max_size=60), st.sampled_from([12, LETTERS]))
def test_two_different_texts_never_look_the_same(first: str, second: str, letters: int) -> None:
    shown = contrast(first, second, letters=letters)
    assert (shown[0] == shown[1]) == (first == second)
    assert max(map(len, shown)) <= letters + 2


def test_the_closest_word_is_proposed_whatever_its_case_and_joints() -> None:
    known = ("buffer_per_class", "buffer", "least-square")
    assert closest("Buffer-Per-Clas", known) == "buffer_per_class"
    assert closest("least_squares", known) == "least-square"
    assert closest("table2", ("table1-start", "table2-last-layer")) == "table2-last-layer"


def test_the_dashes_before_an_option_are_no_letters_of_it() -> None:
    """With them, `--out` was more like `--quiet` than not."""
    assert closest("--out", ("--quiet", "--help")) is None
    assert closest("--output", ("--top", "--json")) is None
    assert closest("--out", ("--plot", "--means")) is None
    assert closest("--itertions", ("--iterations", "--init")) == "--iterations"
    assert closest("--quite", ("--quiet", "--help")) == "--quiet"
    assert closest("--o", ("--out", "--help")) is None


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

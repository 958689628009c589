from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clinit.extract.contrast import LETTERS, contrast

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

"""What a mistyped word may have meant."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


def closest(word: str, known: Iterable[str]) -> str | None:
    """Return the known word that is most like one that is not known; None where none is like it.

    Letters count the same in both cases, and `_` as `-`; the dashes before an option do not count.
    A word that begins with it is like it.
    """
    by_plain = {_plain(each): each for each in known}
    plain = _plain(word)
    begun = [each for each in by_plain if len(plain) > 2 and each.startswith(plain)]
    found = begun or get_close_matches(plain, by_plain, n=1, cutoff=0.6)
    return by_plain[found[0]] if found else None


def did_you_mean(word: str, known: Iterable[str], *, lead: str = "") -> str:
    """Return the question after the word that is most like it; empty where there is none."""
    found = closest(word, known)
    return "" if found is None else f"{lead}Did you mean {found}?"


def _plain(word: str) -> str:
    return word.lower().replace("_", "-").lstrip("-")

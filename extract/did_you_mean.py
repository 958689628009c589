"""What a mistyped word may have meant."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


def closest(word: str, known: Iterable[str]) -> str | None:
    """Return the known word that is most like one that is not known; None where none is like it.

    Letters count the same in both cases, and `_` as `-`; a word that begins with it is like it.
    """
    by_plain = {_plain(each): each for each in known}
    begun = [each for each in by_plain if len(word) > 2 and each.startswith(_plain(word))]
    found = begun or get_close_matches(_plain(word), by_plain, n=1, cutoff=0.6)
    return by_plain[found[0]] if found else None


def did_you_mean(word: str, known: Iterable[str], *, lead: str = "") -> str:
    """Return the question after the word that is most like it; empty where there is none."""
    found = closest(word, known)
    return "" if found is None else f"{lead}Did you mean {found}?"


def _plain(word: str) -> str:
    return word.lower().replace("_", "-")

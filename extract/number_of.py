"""Counts in words: 1 run, 2 runs."""

from __future__ import annotations


def number_of(count: int, noun: str) -> str:
    """Return a count with its noun, in the plural where it is not one: 0 runs, 1 class."""
    ending = "" if count == 1 else "es" if noun.endswith("s") else "s"
    return f"{count:,} {noun}{ending}"

"""Counts in words: 1 run, 2 runs."""

from __future__ import annotations


def number_of(count: int, noun: str) -> str:
    """Return a count with its noun, which takes an s where it is not one: 0 runs, 1 run."""
    return f"{count:,} {noun}" + ("" if count == 1 else "s")

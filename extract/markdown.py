"""Text from data, for Markdown: what a renderer would obey is written out."""

from __future__ import annotations

import re

from clinit.extract.visible import visible

_SPECIAL = re.compile(r"[\\`*_\[\]<>|~$&#!]|:(?=//)|(?<=[wW]{3})\.")
"""Marks, and what makes a link of an address."""


def escaped(text: str) -> str:
    """Return text that Markdown shows letter by letter, in one line."""
    return _SPECIAL.sub(r"\\\g<0>", visible(text))


def lines_of_table(heads: list[str], rows: list[list[str]], *, numbers: int = 0) -> list[str]:
    """Return the lines of a table as GitHub has them.

    Args:
        heads: Of the columns, escaped.
        rows: Of cells, escaped.
        numbers: How many columns at the right are aligned to the right.
    """
    rule = ["---"] * (len(heads) - numbers) + ["---:"] * numbers
    return [f"| {' | '.join(cells)} |" for cells in (heads, rule, *rows)]

"""Links of Markdown files, and the anchors that their headings have."""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

_CODE = re.compile(r"^```.*?^```$|`[^`\n]*`", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\[(?:[^\]\[]|\[[^\]]*\])*\]\(([^)\s]+)\)")
_HEADING = re.compile(r"^#{1,6} +(.*?) *#*$", re.MULTILINE)
_FENCED = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)


def links_of(page: Path) -> Iterator[str]:
    """Yield the targets of the links of a page; what looks like one within code is none."""
    for found in _LINK.finditer(_CODE.sub("code", page.read_text(encoding="utf-8"))):
        yield found[1]


def anchors_of(page: Path) -> set[str]:
    """Return the anchors of the headings of a page, as GitHub makes them."""
    text = _FENCED.sub("", page.read_text(encoding="utf-8"))
    seen: Counter[str] = Counter()
    anchors = set()
    for heading in _HEADING.findall(text):
        slug = slug_of(heading)
        anchors.add(slug if not seen[slug] else f"{slug}-{seen[slug]}")
        seen[slug] += 1
    return anchors


def slug_of(heading: str) -> str:
    """Return the anchor of a heading: letters in lower case, hyphens for spaces."""
    words = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading)  # a link counts as its text
    kept = (
        sign
        for sign in words.lower()
        if sign in "-_ " or unicodedata.category(sign)[0] in "LN" or sign.isalnum()
    )
    return "".join(kept).replace(" ", "-")

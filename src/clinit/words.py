"""Words in messages: text from data, counts, sizes, lists, guesses for a mistyped word.

Names of files, classes and runs and the messages of libraries may contain control characters, and
a terminal obeys them: it changes its title, hides lines, moves the cursor over earlier lines.
`visible` prints them as escapes, `escaped` also the marks of Markdown.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from decimal import Decimal
from difflib import get_close_matches

OBEYED = (
    "\x00-\x1f\x7f-\x9f"  # C0, DEL, C1
    "\u2028-\u202e\u2066-\u2069"  # line separators, overrides and isolates of the direction
    "\ud800-\udfff"  # bytes of a file name that are no UTF-8
)
"""As the inside of a class of characters in a regular expression."""
_PATTERN = re.compile(f"[{OBEYED}]")
_PATTERN_BUT_LINES = re.compile(f"(?![\\n\\t])[{OBEYED}]")


def visible(text: str, *, lines: bool = False) -> str:
    r"""Return `text` with control characters written out: \x1b, \u202e, \x0a.

    With `lines`, line breaks and tabs stay.
    """
    return (_PATTERN_BUT_LINES if lines else _PATTERN).sub(_written_out, text)


def _written_out(found: re.Match[str]) -> str:
    code = ord(found[0])
    if 0xDC80 <= code <= 0xDCFF:
        code -= 0xDC00  # the byte that Python could not decode
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"


def number_of(count: int, noun: str) -> str:
    """Return a count with its noun, in the plural unless it is one: 0 runs, 1 class."""
    ending = "" if count == 1 else "es" if noun.endswith("s") else "s"
    return f"{count:,} {noun}{ending}"


_UNITS = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}

MOST = 9 * 10**18
"""Largest 64-bit count in use: more than anybody has."""


def byte_count(text: str) -> int:
    """Return the number of bytes in a text such as `20GB`.

    >>> byte_count("1.5 GB")
    1500000000

    Raises:
        ValueError: If the text is no size, or the size exceeds `MOST`.
    """
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([KMGT]?B?)\s*", text.upper())
    unit = match[2] if match else ""
    unit = unit if unit.endswith("B") or not unit else f"{unit}B"
    if match is None or unit not in _UNITS:
        raise ValueError(f"takes a size such as 20GB, got {text!r}")
    found = Decimal(match[1]) * _UNITS[unit]
    if found > MOST:
        raise ValueError(f"takes a size of at most {MOST // 10**18} EB, got {text[:40]!r}")
    return int(found)


def size_text(size_bytes: int) -> str:
    """Return a size in the largest unit of which it has one.

    >>> size_text(2_345_678_901)
    '2.35 GB'
    >>> size_text(999)
    '999 B'
    """
    for unit, name in ((10**9, "GB"), (10**6, "MB"), (10**3, "kB")):
        if size_bytes >= unit:
            return f"{size_bytes / unit:,.2f} {name}"
    return f"{size_bytes} B"


LETTERS = 24
DIGEST_LETTERS = 12
"""Printed digits of a SHA-256; files contain all 64."""
_BEFORE = 8
"""Equal letters printed before the first difference."""
_SEEN = 8
"""Least number of letters printed from the first difference on."""


def contrast(first: str, second: str, *, letters: int = LETTERS) -> tuple[str, str]:
    """Return at most `letters` letters of each text, around their first difference.

    >>> contrast("resize 36 bicubic, crop 32", "resize 36 bicubic, centre crop 32")
    ('…cubic, crop 32', '…cubic, centre crop 32')
    """
    pairs = zip(first, second, strict=False)
    common = next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(first), len(second)))
    fits = max(len(first), len(second)) <= letters
    start = 0 if fits or common + _SEEN <= letters else common - _BEFORE
    return _cut(first, start, letters), _cut(second, start, letters)


def contrast_digests(first: str, second: str) -> tuple[str, str]:
    """Return two SHA-256s as a message names them; see `contrast`."""
    return contrast(first, second, letters=DIGEST_LETTERS)


def _cut(text: str, start: int, letters: int) -> str:
    end = start + letters
    return f"{'…' if start else ''}{text[start:end]}{'…' if end < len(text) else ''}"


def closest(word: str, known: Iterable[str]) -> str | None:
    """Return the known word that is most similar to an unknown one; None if no word is similar.

    The comparison ignores case and leading dashes, and takes `_` for `-`. A known word that begins
    with the unknown one is similar.
    """
    by_plain = {_plain(each): each for each in known}
    plain = _plain(word)
    begun = [each for each in by_plain if len(plain) > 2 and each.startswith(plain)]
    found = begun or get_close_matches(plain, by_plain, n=1, cutoff=0.6)
    return by_plain[found[0]] if found else None


def did_you_mean(word: str, known: Iterable[str], *, lead: str = "") -> str:
    """Return a question with the most similar known word; empty if there is none."""
    found = closest(word, known)
    return "" if found is None else f"{lead}Did you mean {found}?"


def nearest(word: str, known: Iterable[str]) -> str:
    """Return a question with the most similar known word; if there is none, all known words."""
    names = list(known)
    return did_you_mean(word, names) or f"Known are: {', '.join(names)}."


def _plain(word: str) -> str:
    return word.lower().replace("_", "-").lstrip("-")


_SPECIAL = re.compile(r"[\\`*_\[\]<>|~$&#!]|:(?=//)|(?<=[wW]{3})\.")
"""Marks, and what makes a link of an address."""


def escaped(text: str) -> str:
    """Return text that Markdown shows letter by letter, in one line."""
    return _SPECIAL.sub(r"\\\g<0>", visible(text))


def lines_of_table(heads: list[str], rows: list[list[str]], *, numbers: int = 0) -> list[str]:
    """Return the lines of a table as GitHub has them.

    Args:
        heads: Names of the columns, escaped.
        rows: Lines of cells, escaped.
        numbers: The last so many columns are aligned to the right.
    """
    rule = ["---"] * (len(heads) - numbers) + ["---:"] * numbers
    return [f"| {' | '.join(cells)} |" for cells in (heads, rule, *rows)]


def listed(words: Iterable[str], last: str = "and") -> str:
    """Return words as a list in a sentence: `a, b or c`."""
    *first, final = words
    return f"{', '.join(first)} {last} {final}" if first else final


def printable(path: str | os.PathLike[str]) -> str:
    r"""Return `path` with the bytes that are not UTF-8 written as \xff."""
    return os.fsencode(path).decode("utf-8", "backslashreplace")


SHOWN = 3


def examples(names: Sequence[str]) -> str:
    """Return the first few names, and an ellipsis if there are more.

    >>> examples(["a", "b", "c", "d"])
    'a, b, c, ...'
    """
    return ", ".join([*names[:SHOWN], *(["..."] if len(names) > SHOWN else [])])


def cut_short(value: object, most: int = 60) -> str:
    """Return the Python literal of a value as a message shows it: its first characters."""
    try:
        text = repr(value)
    except (ValueError, RecursionError):  # such as an integer of thousands of digits
        text = type(value).__name__
    return text if len(text) <= most else f"{text[:most]}…"


def duration(seconds: float) -> str:
    """Return a time in at most five characters: 0.04s, 12.3s, 45.6m, 7.8h."""
    if seconds < 1:
        return f"{seconds:.2f}s"
    if seconds < 99.95:
        return f"{seconds:.1f}s"
    return f"{seconds / 60:.1f}m" if seconds < 5997 else f"{seconds / 3600:.1f}h"

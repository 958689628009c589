"""Format text for messages: data, counts, sizes, lists, and suggestions for a mistyped word.

Names of files and classes, and messages of libraries, may contain control characters. A terminal
would obey them: change its title, hide lines, or move the cursor over earlier lines. `visible`
replaces them with escapes; `escaped` also escapes the marks of Markdown.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterable, Sequence
from decimal import Decimal
from difflib import get_close_matches

OBEYED = (
    "\x00-\x1f\x7f-\x9f"  # C0, DEL, C1
    "\u2028-\u202e\u2066-\u2069"  # line separators, and marks that change the writing direction
    "\ud800-\udfff"  # surrogates, which Python uses for bytes of file names that are not UTF-8
)
"""Control characters, in the form of a character class of a regular expression, without []."""
_PATTERN = re.compile(f"[{OBEYED}]")
_PATTERN_BUT_LINES = re.compile(f"(?![\\n\\t])[{OBEYED}]")


def visible(text: str, *, lines: bool = False) -> str:
    r"""Return `text` with escapes instead of control characters: \x1b, \u202e, \x0a.

    With `lines`, line breaks and tabs are kept.
    """
    return (_PATTERN_BUT_LINES if lines else _PATTERN).sub(_written_out, text)


def _written_out(found: re.Match[str]) -> str:
    code = ord(found[0])
    if 0xDC80 <= code <= 0xDCFF:
        code -= 0xDC00  # the byte that Python could not decode
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"


def quoted(path: object) -> str:
    """Return a path as a shell takes it; `./` makes a path of what would be an option."""
    return shlex.quote(f"./{path}" if str(path).startswith("-") else str(path))


def number_of(count: int, noun: str) -> str:
    """Return a count with its noun in singular or plural: 0 runs, 1 class, 2 classes."""
    ending = "" if count == 1 else "es" if noun.endswith("s") else "s"
    return f"{count:,} {noun}{ending}"


_UNITS = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}

MOST = 9 * 10**18
"""Largest size in bytes; it fits into 64 bits."""


def byte_count(text: str) -> int:
    """Return the number of bytes in a text such as `20GB`.

    >>> byte_count("1.5 GB")
    1500000000

    Raises:
        ValueError: If the text is not a size, or the size exceeds `MOST`.
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
    """Return a size in the largest unit in which it is at least 1.

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
    """Return two SHA-256s shortened for a message; see `contrast`."""
    return contrast(first, second, letters=DIGEST_LETTERS)


def _cut(text: str, start: int, letters: int) -> str:
    end = start + letters
    return f"{'…' if start else ''}{text[start:end]}{'…' if end < len(text) else ''}"


def closest(word: str, known: Iterable[str]) -> str | None:
    """Return the known word that is most similar to an unknown one; None if no word is similar.

    The comparison ignores case, leading dashes, and the difference between `_` and `-`. A known
    word that begins with the unknown one is similar.
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
"""Marks of Markdown, and characters that make an address a link."""


def escaped(text: str) -> str:
    """Return text in which Markdown shows every character, in one line."""
    return _SPECIAL.sub(r"\\\g<0>", visible(text))


def lines_of_table(heads: list[str], rows: list[list[str]], *, numbers: int = 0) -> list[str]:
    """Return the lines of a Markdown table in GitHub's syntax.

    Args:
        heads: Names of the columns, escaped.
        rows: Lines of cells, escaped.
        numbers: Number of columns, at the end, that are aligned to the right.
    """
    rule = ["---"] * (len(heads) - numbers) + ["---:"] * numbers
    return [f"| {' | '.join(cells)} |" for cells in (heads, rule, *rows)]


def listed(words: Iterable[str], last: str = "and") -> str:
    """Return words as a list in a sentence: `a, b or c`."""
    *first, final = words
    return f"{', '.join(first)} {last} {final}" if first else final


def printable(path: str | os.PathLike[str]) -> str:
    r"""Return `path` with escapes (\xff) for bytes that are not UTF-8."""
    return os.fsencode(path).decode("utf-8", "backslashreplace")


def counted(items: Sequence[str], what: str) -> tuple[str, ...]:
    """Return a warning with the number of items and an example; no warning without items."""
    return (f"{what}: {len(items):,} (for example {printable(min(items))})",) if items else ()


SHOWN = 3


def examples(names: Sequence[str], most: int = SHOWN) -> str:
    """Return the first few names, and an ellipsis if there are more.

    >>> examples(["a", "b", "c", "d"])
    'a, b, c, ...'
    """
    return ", ".join([*names[:most], *(["..."] if len(names) > most else [])])


def cut_short(value: object, most: int = 60) -> str:
    """Return the beginning of the `repr` of a value, for messages."""
    try:
        text = repr(value)
    except (ValueError, RecursionError):  # such as for an integer of thousands of digits
        text = type(value).__name__
    return text if len(text) <= most else f"{text[:most]}…"


def duration(seconds: float) -> str:
    """Return a time in at most five characters: 0.04s, 12.3s, 45.6m, 7.8h."""
    if seconds < 1:
        return f"{seconds:.2f}s"
    if seconds < 99.95:
        return f"{seconds:.1f}s"
    return f"{seconds / 60:.1f}m" if seconds < 5997 else f"{seconds / 3600:.1f}h"

"""Replacement of characters that the encoding of the output lacks.

A result with a question mark in it is better than none, and most of what is drawn has a likeness
in ASCII. A Latin-1 terminal, `LC_ALL=C` and `PYTHONIOENCODING=ascii` are such outputs.
"""

from __future__ import annotations

import codecs
import io
import sys
import unicodedata

from clinit.words import visible

_ERRORS = "clinit-likeness"
_LIKENESSES = {
    **dict(zip("▁▂▃▄▅▆▇█", "12345678", strict=True)),
    **{"↑": "^", "↓": "v", "→": "->", "×": "x", "±": "~", "λ": "lambda", "…": "..."},
    "░": ".",
    **{"“": '"', "”": '"', "\N{EN DASH}": "-", "—": "-", "−": "-", "•": "*"},
}


def replace_what_cannot_be_printed() -> None:
    """Make the standard outputs replace the characters that they lack."""
    codecs.register_error(_ERRORS, _replaced)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # not what a test or a notebook puts there
            stream.reconfigure(errors=_ERRORS)


def likeness(letter: str) -> str:
    """Return ASCII for a character: a likeness, its base letter, its escape, or ?."""
    if letter in _LIKENESSES:
        return _LIKENESSES[letter]
    if "─" <= letter <= "╿":  # box drawing
        return "|" if letter in "│┃║╎╏┆┇┊┋" else "-" if letter in "─━═╌╍┄┅┈┉" else "+"
    if (escape := visible(letter)) != letter:
        return escape
    base = unicodedata.normalize("NFKD", letter).encode("ascii", "ignore").decode("ascii")
    return base or "?"


def as_printed(text: str, encoding: str) -> str:
    """Return a text as an output of that encoding prints it, which may be wider."""
    codecs.register_error(_ERRORS, _replaced)
    return text.encode(encoding, _ERRORS).decode(encoding)


def _replaced(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    lacking = error.object[error.start : error.end]
    return "".join(map(likeness, lacking)), error.end

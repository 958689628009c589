r"""Text from data, for a terminal or a drawing: what they would obey is written out.

Names of files, classes and runs and the messages of libraries may hold control characters, and a
terminal obeys them: it changes its title, hides lines, moves the cursor over what was printed.
"""

from __future__ import annotations

import re

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

    Line breaks and tabs stay where `lines` is true.
    """
    return (_PATTERN_BUT_LINES if lines else _PATTERN).sub(_written_out, text)


def _written_out(found: re.Match[str]) -> str:
    code = ord(found[0])
    if 0xDC80 <= code <= 0xDCFF:
        code -= 0xDC00  # the byte that Python could not decode
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"

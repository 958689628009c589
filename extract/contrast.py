"""Two texts of a message, cut so that their difference is seen."""

from __future__ import annotations

LETTERS = 24
DIGEST_LETTERS = 12
"""Of SHA-256s: files keep them whole."""
_BEFORE = 8
"""Letters that are repeated before the first difference."""
_SEEN = 8
"""Letters from the first difference on that are shown at least."""


def contrast(first: str, second: str, *, letters: int = LETTERS) -> tuple[str, str]:
    """Return at most `letters` letters of each text, from shortly before where they differ.

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

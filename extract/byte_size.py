"""Sizes in bytes, as people write and read them."""

from __future__ import annotations

import re
from decimal import Decimal

_UNITS = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}

MOST = 9 * 10**18
"""What fits into 64 bits: more than anybody has."""


def byte_count(text: str) -> int:
    """Return the number of bytes in a text such as `20GB`.

    >>> byte_count("1.5 GB")
    1500000000

    Raises:
        ValueError: If it is none, or more than there can be.
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

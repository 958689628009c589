"""Names of classes: files with one per line, and ImageNet's in words."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

from timm.data import ImageNetInfo

from clinit.errors import CacheError
from clinit.files.text import TextFileError, lines_of, read_text

MAX_NAME = 4096
"""Characters of a class name."""


def read_class_names(path: Path) -> tuple[str, ...]:
    """Read class names, UTF-8, one per line; empty lines are left out.

    Raises:
        CacheError: If it cannot be read, is no text, or names no class or one twice.
    """
    try:
        text = read_text(path)
    except TextFileError as error:
        raise _unusable(path, str(error)) from error
    names = tuple(lines_of(text))
    if not names:
        raise _unusable(path, "the file names none")
    if (longest := max(map(len, names))) > MAX_NAME:
        raise _unusable(path, f"one has {longest:,} characters, expected at most {MAX_NAME:,}")
    if len(set(names)) != len(names):
        raise CacheError(f"a name occurs twice in {path}", remedy="Write every name once.")
    return names


def is_text(name: str) -> bool:
    """Return whether a text can be written as UTF-8: it holds no half characters."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def _unusable(path: Path, why: str) -> CacheError:
    return CacheError(
        f"cannot read the class names in {path}: {why}", remedy="Write one name per line."
    )


_IDENTIFIER = re.compile(r"n\d{8}")


@cache
def _info() -> ImageNetInfo:
    return ImageNetInfo()


def title(class_name: str) -> str:
    """Return a class name in words, the first of its synonyms; other names as they are.

    Two classes of ImageNet-1K are a `crane`.

    >>> title("n01440764"), title("campsite")
    ('tench', 'campsite')
    """
    if not _IDENTIFIER.fullmatch(class_name):
        return class_name
    try:
        return str(_info().label_name_to_description(class_name)).split(", ")[0]
    except KeyError:
        return class_name

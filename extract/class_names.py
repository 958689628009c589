"""Files of class names: one per line, in label order."""

from __future__ import annotations

from pathlib import Path

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

"""Files of class names: one a line, in label order."""

from __future__ import annotations

from pathlib import Path

from clinit.errors import CacheError
from clinit.extract.text_file import TextFileError, read_text


def read_class_names(path: Path) -> tuple[str, ...]:
    """Read class names, UTF-8, one a line; empty lines are left out.

    Raises:
        CacheError: If the file cannot be read, or names a class twice.
    """
    try:
        names = tuple(filter(None, map(str.strip, read_text(path).splitlines())))
    except TextFileError as error:
        raise CacheError(
            f"cannot read the class names in {path}: {error}", remedy="Write one name a line."
        ) from error
    if len(set(names)) != len(names):
        raise CacheError(f"a name occurs twice in {path}", remedy="Write every name once.")
    return names

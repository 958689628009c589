"""Files of class names: one per line, in label order."""

from __future__ import annotations

from pathlib import Path

from clinit.errors import LOOK_AT_STORAGE, CacheError, StorageError

MAX_NAME = 4096
"""Characters of a class name."""
_MAX_BYTES = 2**28


def read_class_names(path: Path) -> tuple[str, ...]:
    """Read class names, UTF-8, one per line; empty lines are left out.

    Raises:
        CacheError: If there is no such file, it is no text, or it names no class or one twice.
        StorageError: If it cannot be read.
    """
    try:
        if not path.is_file():
            raise _unusable(path, "there is no such file")
        if (size := path.stat().st_size) > _MAX_BYTES:
            raise _unusable(path, f"the file has {size:,} bytes, expected at most {_MAX_BYTES:,}")
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise StorageError(
            f"cannot read the class names in {path}: {error.strerror or error}",
            remedy=LOOK_AT_STORAGE,
        ) from error
    except UnicodeDecodeError as error:
        raise _unusable(path, "the file is not UTF-8 text") from error
    names = tuple(filter(None, map(str.strip, text.splitlines())))
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

"""Read text files that a user names.

The size is bounded, because a path may be an endless device such as /dev/zero. A named pipe without
a writer counts as empty. The shell's `<(command)` is a pipe, which is read until the command ends.
"""

from __future__ import annotations

import os
import re
import stat
from pathlib import Path

from clinit.files.paths import instead_of, is_file

LIMIT_BYTES = 16 * 2**20
"""Largest size of a text file in bytes; class names and options usually take a thousandth."""
MAX_NAME = 4096
"""Maximum number of characters of a class name."""


class TextFileError(Exception):
    """A file is not the expected text; messages quote the reason after a colon."""


def is_text(name: str) -> bool:
    """Return whether a text can be encoded as UTF-8, which lone surrogates cannot."""
    return re.search("[\ud800-\udfff]", name) is None


def lines_of(text: str) -> list[str]:
    """Return the lines that are not blank, without spaces around them.

    `splitlines` is not used, because it also splits at characters that a name may contain, such as
    U+2028.
    """
    return [line.strip() for line in re.split(r"\r\n?|\n", text) if line.strip()]


def read_text(path: Path) -> str:
    """Return the content of a file of UTF-8 text, without a byte order mark.

    Raises:
        TextFileError: If the file cannot be read, is not text or has more than `LIMIT_BYTES`.
    """
    try:
        content = _read(path)
        text = content.decode("utf-8-sig")
    except OSError as error:
        why = (error.strerror or str(error), instead_of(path, "", is_file))
        raise TextFileError(". ".join(filter(None, why))) from error
    except UnicodeDecodeError as error:
        line = error.object[: error.start].count(b"\n") + 1
        raise TextFileError(f"it is not UTF-8 text (line {line:,})") from error
    except ValueError as error:  # a NUL in the file name
        raise TextFileError(str(error)) from error
    if "\0" in text:
        raise TextFileError("it is not text: it contains NUL bytes")
    return text


def _read(path: Path) -> bytes:
    # O_NONBLOCK: do not wait for a writer if the file is a pipe.
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    if stat.S_ISDIR(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise TextFileError("it is a folder")
    with open(descriptor, "rb") as file:  # noqa: PTH123 - not a path
        os.set_blocking(descriptor, True)  # a pipe without a writer is at its end
        content = file.read(LIMIT_BYTES + 1)
    if len(content) > LIMIT_BYTES:
        raise TextFileError(f"it is larger than {LIMIT_BYTES // 2**20} MiB")
    return content

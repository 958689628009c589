"""Text files that a user names: read whole, but never without end.

The size is bounded, because a path may name an endless device such as /dev/zero. A named pipe
without a writer counts as empty; `<(command)` is a pipe and is read until the command ends.
"""

from __future__ import annotations

import os
import re
import stat
from pathlib import Path

LIMIT_BYTES = 16 * 2**20
"""Class names and options take a thousandth of it."""


class TextFileError(Exception):
    """A file is not the expected text; the message is the reason, to be printed after a colon."""


def lines_of(text: str) -> list[str]:
    """Return the lines that are not blank, without blanks around them.

    `splitlines` would also end a line at characters that a name may hold, such as U+2028.
    """
    return [line.strip() for line in re.split(r"\r\n?|\n", text) if line.strip()]


def read_text(path: Path) -> str:
    """Return the content of a file of UTF-8 text, without a byte order mark.

    Raises:
        TextFileError: If it cannot be read, is no text or has more than `LIMIT_BYTES`.
    """
    try:
        content = _read(path)
        text = content.decode("utf-8-sig")
    except OSError as error:
        raise TextFileError(error.strerror or str(error)) from error
    except UnicodeDecodeError as error:
        line = error.object[: error.start].count(b"\n") + 1
        raise TextFileError(f"it is not UTF-8 text (line {line:,})") from error
    except ValueError as error:  # a name with a NUL
        raise TextFileError(str(error)) from error
    if "\0" in text:
        raise TextFileError("it is not text: it holds NUL bytes")
    return text


def _read(path: Path) -> bytes:
    # Without waiting for the other end of a pipe.
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

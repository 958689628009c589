"""Text files that a user names: read whole, but never without end.

A name may belong to a device that gives zeros for ever, or to a pipe that nobody writes into.
"""

from __future__ import annotations

import os
import select
import stat
from pathlib import Path

LIMIT_BYTES = 16 * 2**20
"""Class names and options take a thousandth of it."""
_PATIENCE_MS = 1000
"""For the first word from a pipe."""


class TextFileError(Exception):
    """A file is not the text that it should be; the message says why, to be put behind a colon."""


def read_text(path: Path) -> str:
    """Return the content of a file of UTF-8 text.

    Raises:
        TextFileError: If it cannot be read, is no text or has more than `LIMIT_BYTES`.
    """
    try:
        content = _read(path)
        text = content.decode("utf-8")
    except OSError as error:
        raise TextFileError(error.strerror or str(error)) from error
    except UnicodeDecodeError as error:
        line = content[: error.start].count(b"\n") + 1
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
        if stat.S_ISFIFO(os.fstat(descriptor).st_mode):
            poll = select.poll()
            poll.register(descriptor, select.POLLIN)
            if not poll.poll(_PATIENCE_MS):
                raise TextFileError("it is a pipe that nobody writes into")
        os.set_blocking(descriptor, True)
        content = file.read(LIMIT_BYTES + 1)
    if len(content) > LIMIT_BYTES:
        raise TextFileError(f"it is larger than {LIMIT_BYTES // 2**20} MiB")
    return content

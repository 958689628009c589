"""Files that cannot be read are told apart from files that hold the wrong thing."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from clinit.errors import LOOK_AT_STORAGE, ClinitError, StorageError
from clinit.extract.tree import printable


def check_readable(path: Path, error: type[ClinitError]) -> None:
    """Open `path` once: libraries say of a file without rights that it is not there, or damaged.

    A pipe is refused: they would wait for ever for somebody to write into it.

    Raises:
        StorageError: If the system does not let it be read.
        ClinitError: The given `error`, if it is not a file.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        is_file = stat.S_ISREG(os.fstat(descriptor).st_mode)
        os.close(descriptor)
    except OSError as problem:
        raise StorageError(
            f"cannot read {printable(path)}: {problem.strerror or problem}", remedy=LOOK_AT_STORAGE
        ) from problem
    if not is_file:
        raise error(
            f"cannot read {printable(path)}: it is a"
            f" {'folder' if path.is_dir() else 'device or a pipe'}",
            remedy="Give a file.",
        )

"""Whether a result can be written, asked before the work that it is the result of."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path

from clinit.errors import ClinitError, reason, unreadable
from clinit.files.lock import remove_left_locks
from clinit.words import printable


def check_writable(path: Path, option: str = "--out") -> None:
    """Check that a file or folder can be written, if that can be known before.

    Nothing is made: the rights of the nearest folder that exists are looked at, and its storage.

    Raises:
        ClinitError: If it cannot.
    """
    if why := obstacle(path):
        raise ClinitError(
            f"cannot write {path}: {why}",
            remedy=f"Choose a place that you can write to with `{option}`.",
        )


def obstacle(path: Path) -> str | None:
    """Return why a file or folder cannot be written; None if it can."""
    above = (path, *path.absolute().parents) if path.is_dir() else path.absolute().parents
    nearest = next(each for each in above if os.path.lexists(each))
    try:
        if not (nearest.is_dir() and os.access(nearest, os.W_OK | os.X_OK)):
            return f"{nearest} is not a folder you can write to"
        room = os.statvfs(nearest)
    except OSError as error:
        return f"{nearest}: {reason(error)}"
    if room.f_blocks and not room.f_bavail:
        return "no space is left on its storage"
    return None


def check_readable(path: Path, error: type[ClinitError]) -> None:
    """Open `path` once: libraries report a file without rights as missing or damaged.

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
        raise unreadable(printable(path), problem) from problem
    if not is_file:
        raise error(
            f"cannot read {printable(path)}: it is a"
            f" {'folder' if path.is_dir() else 'device or a pipe'}",
            remedy="Give a file.",
        )


_WHOLES = {
    "run.json": "run record",
    "*/plan.json": "feature cache",
    "model.safetensors": "model folder",
}
"""Files that identify a folder whose files belong together, by digests or fingerprints."""


def check_free(
    path: Path,
    what: str,
    foreign: Callable[[Path], str | None],
    error: type[ClinitError],
    *,
    overwrite: bool | None = None,
) -> None:
    """Check that a result can be written to `path`; remove the locks of ended commands there.

    Args:
        path: A file or a folder.
        what: The kind of result, for the message.
        foreign: Gives the reason why the existing file is no such result of clinit, or contains
            more; None if it is one.
        error: The error to raise.
        overwrite: Whether an existing result may be replaced; None if nobody can ask for it.

    Raises:
        ClinitError: If an existing file or folder may not be replaced.
    """
    if path.is_dir() and not path.is_symlink():
        remove_left_locks(path)
    if not (path.exists() or path.is_symlink()):
        return
    if why := "it is a link" if path.is_symlink() else _part_of(path) or foreign(path):
        raise error(
            f"{path} exists and is never replaced: {why}",
            remedy="Choose another --out, or move it away.",
        )
    if not overwrite:
        raise error(
            f"there is already a {what} at {path}",
            remedy="Choose another --out, or move it away."
            if overwrite is None
            else "Choose another --out, or replace it with --overwrite.",
        )


def _part_of(path: Path) -> str | None:
    """Return which result a file is a part of; None for a file that stands alone, or a folder."""
    if not path.is_file():
        return None
    found = [what for marker, what in _WHOLES.items() if any(path.parent.glob(marker))]
    if found == ["model folder"] and not (path.parent / "config.json").is_file():
        return None  # a model file of this name, in a folder of the user
    return f"it is part of the {found[0]} {path.parent}" if found else None

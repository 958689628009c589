"""Whether a result can be written, asked before the work that it is the result of."""

from __future__ import annotations

import os
from pathlib import Path

from clinit.errors import ClinitError


def check_writable(path: Path, option: str = "--out") -> None:
    """Check that a file or folder can be written, as far as that can be known before.

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
    """Return why a file or folder cannot be written; None where nothing is in the way."""
    above = (path, *path.absolute().parents) if path.is_dir() else path.absolute().parents
    nearest = next(each for each in above if os.path.lexists(each))
    try:
        if not (nearest.is_dir() and os.access(nearest, os.W_OK | os.X_OK)):
            return f"{nearest} is not a folder you can write to"
        room = os.statvfs(nearest)
    except OSError as error:
        return f"{nearest}: {error.strerror or error}"
    if room.f_blocks and not room.f_bavail:
        return "no space is left on its storage"
    return None

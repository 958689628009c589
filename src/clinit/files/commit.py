"""Write files atomically: a reader sees either the old content or the new, never a part.

The content is written into a *draft*, a file with a unique name, flushed to the disk and renamed.
Then the folder is flushed, so that the new name survives a power cut. A writer removes only its own
draft; drafts of a killed process are removed by the next process that claims the folder or the file
(`lock`).
"""

import ctypes
import os
import re
import secrets
import shutil
import stat
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from clinit.errors import ClinitError, unwritable

DRAFT = re.compile(r"\.(?P<stem>.+)\.tmp-[0-9a-f]{16}")
"""Matches names of drafts; the stem is the name of the final file."""


def draft_of(path: Path) -> Path:
    """Return a new path for the draft of `path`.

    Its name is random, because process identifiers repeat in containers that share a folder.
    """
    return path.with_name(f".{path.name}.tmp-{secrets.token_hex(8)}")


def flush_folder(folder: Path) -> None:
    """Flush the names in `folder` to the disk."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def flush_file(path: Path) -> None:
    """Flush the content of `path` to the disk."""
    with path.open("rb+") as file:
        os.fsync(file.fileno())


def commit_file(path: Path, write: Callable[[Path], object]) -> None:
    """Create or replace the file `path`; `write` gets the path of the empty draft and fills it.

    A link at `path` is replaced, not followed.

    Raises:
        ClinitError: If the folder cannot be written or the disk is full. `path` is then unchanged.
    """
    _refuse_other_than_file(path)
    draft = draft_of(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        os.close(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o666))
        write(draft)
        flush_file(draft)
        draft.replace(path)
        flush_folder(path.parent)
    except BaseException as error:
        with suppress(OSError):  # the error that led here is reported
            draft.unlink()
        if isinstance(error, OSError):
            raise unwritable(path, error) from error
        raise


def commit_folder(place: Path, write: Callable[[Path], object], *, overwrite: bool = False) -> None:
    """Create the folder `place`; `write` gets the path of the empty draft folder and fills it.

    Args:
        place: The folder; without `overwrite`, it must not exist.
        write: Writes files into the draft folder.
        overwrite: Whether to replace an existing folder.

    Raises:
        ClinitError: If the folder cannot be written. Then no draft is left, and an existing folder
            is unchanged.
    """
    draft = draft_of(place)
    try:
        draft.mkdir(parents=True)
        write(draft)
        for path in draft.iterdir():
            flush_file(path)
        flush_folder(draft)
        take_place(draft, place, overwrite=overwrite)
    except BaseException as error:
        shutil.rmtree(draft, ignore_errors=True)
        if isinstance(error, OSError):
            raise unwritable(place, error) from error
        raise


def take_place(draft: Path, folder: Path, *, overwrite: bool) -> None:
    """Rename a finished draft to `folder`; with `overwrite`, replace an existing folder.

    Raises:
        OSError: If the draft cannot be renamed, or `folder` exists and `overwrite` is false. An
            existing folder is then kept.
    """
    former = draft
    if not (overwrite and os.path.lexists(folder)):
        draft.rename(folder)
    elif not _exchanged(draft, folder):
        former = draft_of(folder)
        folder.rename(former)
        try:
            draft.rename(folder)
        except OSError:
            former.rename(folder)
            raise
    flush_folder(folder.parent)
    shutil.rmtree(former, ignore_errors=True)


def _exchanged(one: Path, other: Path) -> bool:
    """Exchange two folders in one step, and return whether the file system can (NFS cannot).

    With two renames, a kill between them would leave neither folder at its place.
    """
    rename = getattr(ctypes.CDLL(None), "renameat2", None)
    names = os.fsencode(one), os.fsencode(other)
    here, exchange = -100, 2  # AT_FDCWD, RENAME_EXCHANGE
    return rename is not None and not rename(here, names[0], here, names[1], exchange)


def _refuse_other_than_file(path: Path) -> None:
    """Refuse to replace a device or a pipe, which the rename would remove from the system.

    Raises:
        ClinitError: If `path` is a device, a pipe or a folder.
    """
    with suppress(OSError):  # `path` does not exist, or writing will report the fault
        mode = path.stat().st_mode
        if not stat.S_ISREG(mode):
            found = "folder" if stat.S_ISDIR(mode) else "device or a pipe"
            raise ClinitError(f"cannot write {path}: it is a {found}", remedy="Give a file name.")

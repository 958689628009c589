"""Write files so that a reader sees the old state or the new one, never a half of either.

The rename is the only commit: the content is written under a name that nobody else has, flushed
to the disk and renamed; then the folder is flushed, so that the new name survives a power cut
too. A writer removes only its own draft; the next process that claims the folder or the file
(`lock`) removes the drafts of a killed one.
"""

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
"""Names of drafts; the stem is the name of the file."""


def draft_of(path: Path) -> Path:
    """Return a new name under which the content of `path` is written before its commit.

    It is random: process identifiers repeat in containers that share a folder.
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
    """Create or replace `path` by what `write` writes to the empty draft it is given.

    A link at `path` is replaced, not followed.

    Raises:
        ClinitError: If the folder cannot be written or the disk is full. `path` is then what
            it was before.
    """
    _refuse_other_than_file(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        _commit(path, write)
    except OSError as error:
        raise unwritable(path, error) from error


def _commit(path: Path, write: Callable[[Path], object]) -> None:
    draft = draft_of(path)
    try:
        os.close(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o666))
        write(draft)
        flush_file(draft)
        draft.replace(path)
        flush_folder(path.parent)
    except BaseException:
        _remove(draft)
        raise


def commit_folder(
    folder: Path, write: Callable[[Path], object], *, overwrite: bool = False
) -> None:
    """Create `folder` by what `write` writes into the empty draft of it.

    Args:
        folder: It must not exist, unless it is overwritten.
        write: Is given the draft.
        overwrite: Whether an existing folder is removed.

    Raises:
        ClinitError: If it cannot be written. Nothing is left behind then.
    """
    draft = draft_of(folder)
    try:
        draft.mkdir(parents=True)
        write(draft)
        for path in draft.iterdir():
            flush_file(path)
        flush_folder(draft)
        take_place(draft, folder, overwrite=overwrite)
    except OSError as error:
        shutil.rmtree(draft, ignore_errors=True)
        raise unwritable(folder, error) from error
    except BaseException:
        shutil.rmtree(draft, ignore_errors=True)
        raise


def take_place(draft: Path, folder: Path, *, overwrite: bool) -> None:
    """Give a folder that is written its name; one that has the name goes with `overwrite` alone.

    Raises:
        OSError: If it cannot be renamed, or the name is taken. An existing folder is kept then.
    """
    if overwrite and folder.exists():
        former = draft_of(folder)
        folder.rename(former)
        try:
            draft.rename(folder)
        except OSError:
            former.rename(folder)
            raise
        flush_folder(folder.parent)
        shutil.rmtree(former, ignore_errors=True)
        return
    draft.rename(folder)
    flush_folder(folder.parent)


def _remove(draft: Path) -> None:
    with suppress(OSError):  # a wrong name or folder has been reported already
        draft.unlink()


def _refuse_other_than_file(path: Path) -> None:
    """Refuse a device or a pipe: the rename would remove it from the system.

    Raises:
        ClinitError: If there is one, or a folder.
    """
    with suppress(OSError):  # nothing exists, or the writing will report the fault
        mode = path.stat().st_mode
        if not stat.S_ISREG(mode):
            found = "folder" if stat.S_ISDIR(mode) else "device or a pipe"
            raise ClinitError(
                f"cannot write {path}: it is a {found}", remedy="Give the name of a file."
            )

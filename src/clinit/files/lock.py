"""Claims on folders and files, so that only one process at a time writes to them.

A claim is a kernel lock on an empty file: `.lock` in the folder, or `.NAME.lock` next to the file.
The kernel releases the lock when the process ends, even by a kill. Lock files are never written to
and links never followed, so that a planted link cannot make clinit empty another file.

A claim only saves work and shows which drafts ended processes have left; the renames of `commit`
alone ensure that no reader sees half a file and no finished file is lost. So clinit works, without
claims, on storage that cannot lock; `clinit doctor` warns about it.
"""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import stat
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from clinit.errors import ClinitError, unwritable
from clinit.files.commit import DRAFT, commit_file

_CANNOT_LOCK = frozenset({errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL})
_LOCK = ".lock"
_WAIT = "Wait until it has finished, or end it; then run this command again."


@contextmanager
def claim_folder(
    folder: Path, *, leaves_lock: bool = True, on_busy: Callable[[], None] | None = None
) -> Iterator[None]:
    """Make this the only process that writes into a folder; remove drafts of killed processes.

    Args:
        folder: The folder, made if it does not exist.
        leaves_lock: Whether to keep the lock file; false for folders for other programs.
        on_busy: Called if another process has the claim, before this process waits for it; None
            raises an error instead.

    Raises:
        ClinitError: If another process has the claim and `on_busy` is None, or the folder cannot
            be written, is removed or is replaced.
    """
    is_new, lock = not os.path.lexists(folder), folder / _LOCK
    with _claim(lock, folder, on_busy) as (descriptor, is_locked):
        if is_locked:
            _sweep(folder)
        try:
            yield
        except BaseException:
            if _names(lock, descriptor) and [*folder.iterdir()] == [lock]:  # nothing was begun
                lock.unlink()
                if is_new:
                    folder.rmdir()
            raise
        if not _names(lock, descriptor):
            raise ClinitError(
                f"{folder} was removed or replaced while this command wrote into it",
                remedy="Run the same command again; it completes the folder.",
            )
        if not leaves_lock:
            # Remove it before the release, as in `claim_file`; after an error, leave it.
            lock.unlink(missing_ok=True)


def remove_left_locks(folder: Path) -> None:
    """Remove the lock file that an ended command has left in a folder.

    If the folder contains only such locks, remove it. Locks of running commands and all other files
    are kept.
    """
    for path in folder.rglob("*"):
        if (path.is_symlink() or not path.is_dir()) and not _is_left(path):
            break
    else:
        if any(folder.rglob(_LOCK)):
            shutil.rmtree(folder)
            return
    if _is_left(folder / _LOCK):
        (folder / _LOCK).unlink()


def make_folder(folder: Path) -> None:
    """Make a folder if it does not exist.

    Raises:
        ClinitError: If the folder cannot be made.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise unwritable(folder, error) from error


@contextmanager
def claim_file(
    path: Path, *, drafts_of: Iterable[str] = (), on_busy: Callable[[], None] | None = None
) -> Iterator[None]:
    """Make this the only process that writes the file `path`; remove drafts of killed processes.

    Its folder is made if absent. `drafts_of` names further files in it that only this process
    writes. `on_busy` and errors are as in `claim_folder`.
    """
    lock = path.with_name(f".{path.name}.lock")
    with _claim(lock, path, on_busy) as (_, is_locked):
        if is_locked:
            _sweep(path.parent, {path.name, *drafts_of})
        try:
            yield
        finally:
            # Remove it before the release: a waiting process sees that it is gone and starts anew.
            lock.unlink(missing_ok=True)


def write_in_turn(path: Path, write: Callable[[Path], object]) -> None:
    """Write a file as `commit_file` does, after other processes that are writing it."""
    with claim_file(path, on_busy=lambda: None):
        commit_file(path, write)


def claimed_names(folder: Path, pattern: str) -> list[str]:
    """Return the names of claimed files in a folder, including files claimed by this process."""
    locks = folder.glob(f".{pattern}.lock")
    return [f.name.removeprefix(".").removesuffix(".lock") for f in locks if _is_claimed(f)]


@contextmanager
def _claim(
    lock: Path, claimed: Path, on_busy: Callable[[], None] | None
) -> Iterator[tuple[int, bool]]:
    """Open the lock file; hold its lock if the storage can lock, and yield whether it can."""
    while True:
        make_folder(lock.parent)
        descriptor = _open(lock, claimed)
        try:
            locked = _hold(descriptor, claimed, on_busy)
            if locked and not _names(lock, descriptor):
                continue  # the former holder has removed the lock file: make a new one
            yield descriptor, locked
            return
        finally:
            os.close(descriptor)


def _open(lock: Path, claimed: Path) -> int:
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        descriptor = os.open(lock, flags, 0o666)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.EMLINK, errno.EISDIR, errno.ENXIO):
            raise _not_a_lock(lock) from error
        raise unwritable(claimed, error) from error
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise _not_a_lock(lock)
    return descriptor


def _hold(descriptor: int, claimed: Path, on_busy: Callable[[], None] | None) -> bool:
    """Lock an open lock file; return False if the storage cannot lock."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in _CANNOT_LOCK:
            return False
        if error.errno not in (errno.EWOULDBLOCK, errno.EAGAIN, errno.EACCES):
            raise unwritable(claimed, error) from error
        if on_busy is None:
            where = f"into {claimed}" if claimed.is_dir() else str(claimed)
            raise ClinitError(f"another process is writing {where}", remedy=_WAIT) from error
        on_busy()
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        except OSError as problem:  # such as a file server that has become unreachable
            raise unwritable(claimed, problem) from problem
    return True


def _names(path: Path, descriptor: int) -> bool:
    """Return whether `path` is still the name of the open file."""
    try:
        return os.path.samestat(path.lstat(), os.fstat(descriptor))
    except (FileNotFoundError, NotADirectoryError):
        return False


def _sweep(folder: Path, stems: Collection[str] | None = None) -> None:
    """Remove the drafts in a claimed folder; with `stems`, only drafts of these claimed files."""
    with os.scandir(folder) as entries:
        found = [(entry, match) for entry in entries if (match := DRAFT.fullmatch(entry.name))]
    for entry, match in found:
        if stems is None and _is_claimed(folder / f".{match['stem']}.lock"):
            continue  # another process is writing this file
        if stems is None or match["stem"] in stems:
            if entry.is_dir(follow_symlinks=False):
                shutil.rmtree(entry.path, ignore_errors=True)
            else:
                Path(entry.path).unlink(missing_ok=True)


def _is_left(path: Path) -> bool:
    """Return whether a file is a lock file that no process holds."""
    return (
        path.name == _LOCK and path.is_file() and not path.stat().st_size and not _is_claimed(path)
    )


def _is_claimed(lock: Path) -> bool:
    try:
        descriptor = os.open(lock, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    except OSError:  # the lock exists and cannot be opened: perhaps it is another user's
        return True
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        return error.errno not in _CANNOT_LOCK
    finally:
        os.close(descriptor)
    return False


def _not_a_lock(lock: Path) -> ClinitError:
    return ClinitError(
        f"{lock} is a link or not a regular file, so it is not a lock of clinit",
        remedy="Check the origin of this folder; remove this file if you trust the rest.",
    )

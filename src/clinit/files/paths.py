"""Check paths before long work: whether results can be written, and files can be read."""

from __future__ import annotations

import atexit
import errno
import os
import shutil
import stat
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Literal

from clinit.errors import ClinitError, StorageError, reason, unreadable
from clinit.files.lock import remove_left_locks
from clinit.words import closest, printable


def check_writable(path: Path, option: str = "--out") -> None:
    """Check that a file or folder can be written, as far as possible without writing.

    The check reads the permissions and the free space of the nearest existing folder. Nothing may
    be written into another result, such as a model folder, which could not be replaced from then
    on.

    Raises:
        ClinitError: If `path` cannot be written.
    """
    if why := obstacle(path) or _part_of(path):
        raise ClinitError(
            f"cannot write {path}: {why}",
            remedy=f"Choose another place with `{option}`, one that you can write to.",
        )


def obstacle(path: Path) -> str | None:
    """Return why a file or folder cannot be written; None if no reason is found."""
    above = (path, *path.absolute().parents) if is_folder(path) else path.absolute().parents
    nearest = next(each for each in above if os.path.lexists(each))
    try:
        if not (nearest.is_dir() and os.access(nearest, os.W_OK | os.X_OK)):
            return f"{nearest} is not a folder you can write to"
        room = os.statvfs(nearest)
    except OSError as error:
        return f"{nearest}: {reason(error)}"
    return "no space is left on its storage" if room.f_blocks and not room.f_bavail else None


Kind = Literal["file", "folder", "other"]


def kind_of(path: Path) -> Kind | None:
    """Return what is at a path, after links; None for nothing, or a link to nothing.

    Raises:
        StorageError: If this cannot be known, as a folder above may not be entered.
    """
    try:
        mode = path.stat().st_mode
    except (FileNotFoundError, NotADirectoryError, ValueError):  # a NUL in the name
        return None
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENAMETOOLONG):
            return None
        raise unreadable(printable(path), error) from error
    return "file" if stat.S_ISREG(mode) else "folder" if stat.S_ISDIR(mode) else "other"


def exists(path: Path) -> bool:
    """Return whether anything is at a path, see `kind_of`."""
    return kind_of(path) is not None


def is_file(path: Path) -> bool:
    """Return whether there is a regular file, see `kind_of`."""
    return kind_of(path) == "file"


def is_folder(path: Path) -> bool:
    """Return whether there is a folder, see `kind_of`."""
    return kind_of(path) == "folder"


def check_readable(path: Path, error: type[ClinitError]) -> None:
    """Check that `path` is a file that can be opened.

    Libraries would report a file without read permission as missing or damaged, and would wait for
    ever for input from a pipe.

    Raises:
        StorageError: If the file cannot be opened.
        ClinitError: The given `error`, if `path` is not a regular file.
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


def instead_of(path: Path, remedy: str, is_right: Callable[[Path], bool]) -> str:
    """Return a question with the most similar path that is right, or the remedy.

    It differs in one name, in the first folder that does not exist or else the last name.

    Args:
        path: A path that does not exist.
        remedy: What to do if no path is similar.
        is_right: Whether a path is of the required kind.
    """

    def fits(other: Path) -> bool:
        with suppress(OSError, StorageError):  # a closed folder is not the one that was meant
            return other != here and exists(other / rest) and is_right(other / rest)
        return False

    try:
        here = next(each for each in (*reversed(path.parents), path) if not exists(each))
        rest = path.relative_to(here)
        names = sorted(each.name for each in here.parent.iterdir() if fits(each))
    except (OSError, StopIteration):  # it exists, and is of another kind
        return remedy
    by_stem = {name.removesuffix(here.suffix): name for name in names}  # equal ends say little
    found = closest(here.stem, by_stem)
    if found is None:
        return remedy
    return f"Did you mean {printable(here.with_name(by_stem[found]) / rest)}?"


def own_folder(name: str) -> Path:
    """Return a folder for cached files that this user trusts, made if it does not exist.

    It is `clinit/NAME` in the user's folder for caches. If another user may have written to it, or
    it cannot be made, it is a new folder, which is removed when the process ends.
    """
    with suppress(OSError, RuntimeError):  # no home folder, or one that cannot be written
        cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
        if cache.is_absolute():  # as the specification of XDG demands
            cache.mkdir(parents=True, exist_ok=True)
            folder = cache.resolve() / "clinit" / name
            folder.parent.mkdir(mode=0o700, exist_ok=True)
            folder.mkdir(mode=0o700, exist_ok=True)
            if _is_own(folder) and os.access(folder, os.W_OK):
                return folder
    fresh = Path(tempfile.mkdtemp(prefix="clinit-"))
    atexit.register(shutil.rmtree, fresh, ignore_errors=True)
    return fresh


def _is_own(folder: Path) -> bool:
    """Return whether only this user may write to a folder, or exchange a folder above it."""
    made, above = folder.lstat(), [each.lstat() for each in folder.parents]
    is_private = stat.S_ISDIR(made.st_mode) and not made.st_mode & 0o077
    # In a group with the number of a user is this user alone.
    shared = [each.st_mode & (0o02 if each.st_gid == each.st_uid else 0o22) for each in above]
    return (made.st_uid, is_private) == (os.geteuid(), True) and all(
        stat.S_ISDIR(each.st_mode)
        and each.st_uid in (0, os.geteuid())
        and (not by_others or each.st_mode & stat.S_ISVTX)
        for each, by_others in zip(above, shared, strict=True)
    )


_WHOLES = {"run record": ("run.json",), "feature cache": ("train/plan.json", "val/plan.json")}
"""Kind of result -> files of which it has at least one. Its files belong together."""


def check_free(
    path: Path,
    what: str,
    foreign: Callable[[Path], str | None],
    error: type[ClinitError],
    *,
    overwrite: bool | None = None,
) -> None:
    """Check that a result may be written to `path`; remove locks left there by ended commands.

    Args:
        path: A file or a folder.
        what: The kind of result, for the message.
        foreign: Returns why an existing file or folder is not, or not only, such a result of
            clinit; None if it is such a result.
        error: The error to raise.
        overwrite: Whether to allow replacing an existing result; None if the caller has no such
            option.

    Raises:
        ClinitError: If an existing file or folder may not be replaced.
    """
    if is_folder(path) and not path.is_symlink():
        remove_left_locks(path)
    is_there = exists(path) or path.is_symlink()
    why = "it is a link" if path.is_symlink() else _part_of(path) or (is_there and foreign(path))
    if not (is_there or why):
        return
    told = f"there is already a {what} at {path}"
    if why:
        never = f"{path} is never written: {why}"
        told = f"{path} exists and is never replaced: {why}" if is_there else never
    how = "move it away" if why or overwrite is None else "replace it with --overwrite"
    if why or not overwrite:
        raise error(told, remedy=f"Choose another --out, or {how}.")


def looks_like_model(path: Path) -> bool:
    """Return whether a path has the form of a model or of a head."""
    if is_folder(path):
        return is_file(path / "model.safetensors")
    return path.suffix.lower() in (".safetensors", ".onnx", ".npz") and is_file(path)


def _part_of(path: Path) -> str | None:
    """Return a message if a path is in the folder of a result; None otherwise."""
    for folder in path.resolve().parents:
        for what, markers in _WHOLES.items():
            if any(is_file(folder / marker) for marker in markers):
                return f"it is part of the {what} {folder}"
        if _is_model_folder(folder):
            return f"it is part of the model folder {folder}"
    return None


def _is_model_folder(folder: Path) -> bool:
    """Return whether clinit has written a model folder: a user may keep single models anywhere."""
    if not is_file(folder / "config.json"):
        return False
    with suppress(OSError), (folder / "model.safetensors").open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        return b'"clinit_model"' in file.read(min(length, 2**24))
    return False

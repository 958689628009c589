"""One writer a folder."""

from __future__ import annotations

import fcntl
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from clinit.errors import CacheError


@contextmanager
def only_writer(folder: Path, *, on_busy: Callable[[], None] | None = None) -> Iterator[None]:
    """Hold the folder's lock; the kernel gives it back when the process ends, however it ends.

    Args:
        folder: Made where it does not exist.
        on_busy: Called if another process holds the lock, before this one waits for it; None
            does not wait.

    Raises:
        CacheError: If another process holds it and nobody waits, or the folder cannot be written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = (folder / ".lock").open("w")
    except OSError as error:
        raise CacheError(
            f"cannot write into {folder}: {error.strerror}",
            remedy="Choose a folder you can write with `--out`.",
        ) from error
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if on_busy is None:
                raise CacheError(
                    f"another process is extracting into {folder}",
                    remedy="Wait until it has finished, or end it; then run this command again.",
                ) from error
            on_busy()
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield

"""File operations that fail, wait or kill: wrapped where Python calls them, in one process.

`install` counts the operations below one folder that change it: opening for writing, each raw
write, fsync, rename, mkdir, unlink, rmdir, link, truncate, lock; the files that safetensors and
polars write themselves; commits of SQLite. At one of them something happens. With `watch` the
count is of files opened for reading, or of images decoded, instead.

kill     SIGKILL, before the operation
after    SIGKILL after it; of a write, after half of it
short    half of a write, then no space
enospc   no space from there on: no write, fsync, mkdir or new file
edquot   likewise, the quota
eio eacces erofs emfile enomem     this one operation fails
enolck enosys eopnotsupp           locks fail, from there on
term int hup                       a signal to oneself; the operation goes on
pause    wait until the file `go` is there, having made the file `paused`
none     nothing: to count
"""

from __future__ import annotations

import builtins
import errno
import fcntl
import functools
import io
import os
import signal
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

ERRORS = {
    "enospc": errno.ENOSPC,
    "edquot": errno.EDQUOT,
    "short": errno.ENOSPC,
    "eio": errno.EIO,
    "eacces": errno.EACCES,
    "erofs": errno.EROFS,
    "emfile": errno.EMFILE,
    "enomem": errno.ENOMEM,
    "enolck": errno.ENOLCK,
    "enosys": errno.ENOSYS,
    "eopnotsupp": errno.EOPNOTSUPP,
}
SIGNALS = {"term": signal.SIGTERM, "int": signal.SIGINT, "hup": signal.SIGHUP}
NEEDS_SPACE = {"open", "write", "fsync", "mkdir", "native", "sql"}
WRITES = ("open", "write", "fsync", "rename", "mkdir", "unlink", "rmdir", "link", "truncate")
KINDS: Mapping[str, tuple[str, ...]] = {
    "eacces": ("open", "mkdir", "rename", "unlink", "rmdir"),
    "erofs": ("open", "mkdir", "rename", "unlink", "rmdir"),
    "emfile": ("open",),
    "short": ("write", "native"),
    "enolck": ("lock",),
    "enosys": ("lock",),
    "eopnotsupp": ("lock",),
}
"""The kinds of operation that a mode is for; others take every one."""
COMPUTED = "computed"
"""Begins the lines of the log that are no operations: an image decoded, an update done."""
NO_MEMORY = (
    "[enforce fail at alloc_cpu.cpp:124] err == 0. DefaultCPUAllocator: can't allocate memory:"
    " you tried to allocate 3145728 bytes. Error code 12 (Cannot allocate memory)"
)


class Shim:
    """What happens at which operation."""

    def __init__(self, spec: Mapping[str, Any], log: Path) -> None:
        self.scope = os.path.abspath(spec["scope"])  # noqa: PTH100 - no link is followed
        self.mode, self.at = spec.get("mode", "none"), spec.get("at", 0)
        self.watch = spec.get("watch", "writes")
        self.paused, self.go = spec.get("paused"), spec.get("go")
        self.slow = spec.get("slow", 0.0)
        self._number, self._lock = 0, threading.Lock()
        self._log = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND, 0o644)
        self._write, self._kill, self._pid = os.write, os.kill, os.getpid()

    def inside(self, path: object, directory: int | None = None) -> str | None:
        """Return the whole path where it is below the scope."""
        with suppress(Exception):
            if isinstance(path, int):
                name = str(Path(f"/proc/self/fd/{path}").readlink()).removesuffix(" (deleted)")
            else:
                name = os.fsdecode(path)  # type: ignore[arg-type]
                if directory is not None and not os.path.isabs(name):  # noqa: PTH117
                    name = str(Path(f"/proc/self/fd/{directory}").readlink() / name)
            name = os.path.abspath(name)  # noqa: PTH100
            if name == self.scope or name.startswith(self.scope + os.sep):
                return name
        return None

    def step(
        self,
        kind: str,
        path: str,
        do: Callable[[], Any],
        half: Callable[[], Any] | None = None,
    ) -> Any:
        """Do one operation, or what is to happen instead."""
        time.sleep(self.slow)
        with self._lock:
            self._number += 1
            number = self._number
            self._write(self._log, f"{kind} {path[len(self.scope) :] or '/'}\n".encode())
        mode = self.mode
        if number < self.at or self.at == 0:
            return do()
        if number > self.at:
            space = mode in ("enospc", "edquot") and kind in NEEDS_SPACE
            lock = mode in ("enolck", "enosys", "eopnotsupp") and kind == "lock"
            if space or lock:
                raise self._error(kind, path)
            return do()
        if mode == "kill":
            self._die()
        elif mode == "after":
            (half or do)()
            self._die()
        elif mode in ERRORS:
            if mode == "short" and half is not None:
                half()
            raise self._error(kind, path)
        elif mode == "runtime":
            raise RuntimeError(NO_MEMORY)
        elif mode == "memory":
            raise MemoryError
        elif mode in SIGNALS:
            self._kill(self._pid, SIGNALS[mode])
        elif mode == "pause":
            self._pause()
        return do()

    def note(self, kind: str) -> None:
        """Write down that something was computed; it is no file operation."""
        self._write(self._log, f"{COMPUTED} {kind}\n".encode())

    def _error(self, kind: str, path: str) -> Exception:
        number = ERRORS[self.mode]
        if kind == "sql":
            import sqlite3

            full = number in (errno.ENOSPC, errno.EDQUOT)
            return sqlite3.OperationalError(
                "database or disk is full" if full else "disk I/O error"
            )
        return OSError(number, os.strerror(number), path)

    def _die(self) -> None:
        self._kill(self._pid, signal.SIGKILL)
        time.sleep(60)

    def _pause(self) -> None:
        os.close(os.open(str(self.paused), os.O_WRONLY | os.O_CREAT, 0o644))
        while not os.path.exists(str(self.go)):  # noqa: PTH110
            time.sleep(0.002)


def install(spec: Mapping[str, Any], log: Path) -> None:
    """Wrap the operations of this process.

    Args:
        spec: `scope` (folder), `mode` and `at` (1 is the first operation; 0 only counts); where
            they are wanted, `watch` (writes, reads, decode), `pid` (for `os.getpid`), `paused`
            and `go`, `slow` (seconds before each operation), and `computing`, to write down what
            is computed too.
        log: The file that gets a line an operation.
    """
    shim = Shim(spec, log)
    if "pid" in spec:
        os.getpid = lambda: int(spec["pid"])
    if spec.get("computing"):
        _wrap_computing(shim)
    if shim.watch == "reads":
        _wrap_open(shim, reading=True)
    elif shim.watch == "decode":
        _wrap_decoding(shim)
    else:
        _wrap_open(shim, reading=False)
        _wrap_os(shim)
        _wrap_natives(shim)
        _wrap_sqlite(shim)


def _wrap_open(shim: Shim, *, reading: bool) -> None:
    real, real_os = io.open, os.open

    class Counted(io.FileIO):
        """A file whose raw writes are counted."""

        def write(self, data: Any, /) -> int:
            content = memoryview(data).cast("B")
            path = shim.inside(self.fileno()) or shim.scope
            return int(
                shim.step(
                    "write",
                    path,
                    lambda: super(Counted, self).write(content),
                    lambda: super(Counted, self).write(content[: len(content) // 2]),
                )
            )

        def truncate(self, size: int | None = None, /) -> int:
            path = shim.inside(self.fileno()) or shim.scope
            return int(shim.step("truncate", path, lambda: super(Counted, self).truncate(size)))

    def wrapped(
        file: Any,
        mode: str = "r",
        buffering: int = -1,
        encoding: str | None = None,
        errors: str | None = None,
        newline: str | None = None,
        closefd: bool = True,
        opener: Any = None,
    ) -> Any:
        path = shim.inside(file)
        writing = any(letter in mode for letter in "wax+")

        def plain() -> Any:
            return real(file, mode, buffering, encoding, errors, newline, closefd, opener)

        if path is None or (isinstance(file, int) and not writing):
            return plain()
        if reading:
            return plain() if writing else shim.step("read", path, plain)
        if not writing:
            return plain()

        def make() -> Any:
            raw = Counted(file, mode.replace("b", "").replace("t", ""), closefd, opener)
            if buffering == 0:
                return raw
            buffered: Any = io.BufferedRandom(raw) if "+" in mode else io.BufferedWriter(raw)
            if "b" in mode:
                return buffered
            text = io.TextIOWrapper(buffered, encoding, errors, newline, buffering == 1)
            text.mode = mode  # type: ignore[misc]
            return text

        return make() if isinstance(file, int) else shim.step("open", path, make)

    def wrapped_os(path: Any, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        def do() -> int:
            return real_os(path, flags, mode, dir_fd=dir_fd)

        where = shim.inside(path, dir_fd)
        writing = flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)
        if where is None or bool(writing) == reading or flags & os.O_DIRECTORY:
            return do()
        return int(shim.step("read" if reading else "open", where, do))

    builtins.open = io.open = wrapped
    os.open = wrapped_os


def _wrap_os(shim: Shim) -> None:
    def one(name: str, kind: str) -> None:
        real = getattr(os, name)

        def wrapped(path: Any, *args: Any, **kwargs: Any) -> Any:
            where = shim.inside(path, kwargs.get("dir_fd"))
            if where is None:
                return real(path, *args, **kwargs)
            return shim.step(kind, where, lambda: real(path, *args, **kwargs))

        setattr(os, name, wrapped)

    def two(name: str, kind: str) -> None:
        real = getattr(os, name)

        def wrapped(source: Any, target: Any, *args: Any, **kwargs: Any) -> Any:
            where = shim.inside(target, kwargs.get("dst_dir_fd", kwargs.get("dir_fd")))
            if where is None:
                return real(source, target, *args, **kwargs)
            return shim.step(kind, where, lambda: real(source, target, *args, **kwargs))

        setattr(os, name, wrapped)

    def descriptor(module: Any, name: str, kind: str) -> None:
        real = getattr(module, name)

        def wrapped(file: Any, *args: Any) -> Any:
            number = file if isinstance(file, int) else file.fileno()
            where = shim.inside(number)
            release = kind == "lock" and args and args[0] & fcntl.LOCK_UN
            if where is None or release:
                return real(file, *args)
            half = None
            if kind == "write":
                content = memoryview(args[0]).cast("B")
                half = lambda: real(file, content[: len(content) // 2])  # noqa: E731
            return shim.step(kind, where, lambda: real(file, *args), half)

        setattr(module, name, wrapped)

    for name, kind in (
        *(("mkdir", "mkdir"), ("unlink", "unlink"), ("remove", "unlink"), ("rmdir", "rmdir")),
        *(("truncate", "truncate"), ("chmod", "chmod")),
    ):
        one(name, kind)
    for name, kind in (
        *(("rename", "rename"), ("replace", "rename"), ("link", "link"), ("symlink", "link")),
    ):
        two(name, kind)
    for name, kind in (
        *(("write", "write"), ("fsync", "fsync"), ("fdatasync", "fsync")),
        ("ftruncate", "truncate"),
    ):
        descriptor(os, name, kind)
    for name in ("flock", "lockf"):
        descriptor(fcntl, name, "lock")


def _wrap_natives(shim: Shim) -> None:
    """Wrap what writes files by itself: a file is half there, then whole."""

    def around(module: Any, name: str) -> None:
        real = getattr(module, name, None)
        if real is None:
            return

        def wrapped(*args: Any, **kwargs: Any) -> Any:
            target: Any = args[1] if len(args) > 1 else None
            name = getattr(target, "name", target)
            where = shim.inside(name) if isinstance(name, str | os.PathLike) else None
            if where is None:
                return real(*args, **kwargs)

            def half() -> None:
                real(*args, **kwargs)
                if not isinstance(target, str | os.PathLike):
                    target.flush()
                descriptor = real_open(where, os.O_WRONLY)
                real_truncate(descriptor, os.fstat(descriptor).st_size // 2)

            return shim.step("native", where, lambda: real(*args, **kwargs), half)

        setattr(module, name, wrapped)

    real_open, real_truncate = os.open, os.ftruncate
    import polars
    import safetensors.numpy
    import safetensors.torch

    around(safetensors.numpy, "serialize_file")
    around(safetensors.torch, "serialize_file")
    around(polars.DataFrame, "write_parquet")


def _wrap_sqlite(shim: Shim) -> None:
    import sqlite3
    from sqlite3 import dbapi2

    class Connection(sqlite3.Connection):
        def commit(self) -> None:
            shim.step("sql", f"{shim.scope}/study.db", super().commit)

    def connect(*args: Any, **kwargs: Any) -> Any:
        return real(*args, **{"factory": Connection, **kwargs})

    real: Any = sqlite3.connect
    for module in (sqlite3, dbapi2):
        setattr(module, "connect", connect)  # noqa: B010 - of another type


def _wrap_decoding(shim: Shim) -> None:
    from clinit.extract.dataset import decode as module

    real: Any = vars(module)["decode_image"]

    def wrapped(*args: Any, **kwargs: Any) -> Any:
        return shim.step("decode", f"{shim.scope}/image", lambda: real(*args, **kwargs))

    vars(module)["decode_image"] = wrapped


def _wrap_computing(shim: Shim) -> None:
    """Write down each update of an optimizer and each image that is decoded."""
    import torch

    from clinit.extract.dataset import decode as module

    def wrap(owner: Any, name: str, kind: str) -> None:
        real = getattr(owner, name, None)
        if real is None:
            return

        @functools.wraps(real)
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            shim.note(kind)
            return real(*args, **kwargs)

        setattr(owner, name, wrapped)

    for optimizer in (torch.optim.AdamW, torch.optim.SGD, torch.optim.Adam):
        wrap(optimizer, "step", "update")
    wrap(module, "decode_image", "image")

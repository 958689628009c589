"""The process: its threads and memory, its end by a signal, its place as the only writer of a path.

Defaults for the threads and the memory of PyTorch, SciPy and Polars only affect libraries that are
loaded later, so they are set first. Values that the user has set are not changed.

Ctrl-C, SIGTERM and SIGHUP end a command as an error does, and report the work that is kept: the
signal becomes an exception, so that context managers remove drafts and release locks. One stop may
send two signals: `timeout` signals the process and its group, and a closing terminal signals its
shell and its jobs. So further signals are ignored for a second; later signals end the process.

The path of --out is claimed before a cache is read, so that a second process is refused early.
"""

from __future__ import annotations

import ctypes
import signal
import time
from collections.abc import Iterator, Mapping, MutableMapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from types import FrameType

from clinit.errors import HeadError
from clinit.files.lock import claim_file, claim_folder
from clinit.files.paths import check_free, check_writable
from clinit.machine import cpu_count, visible_cpus

SPIN_COUNT = 1000
"""Turns of the loop in which a thread of GNU OpenMP (part of PyTorch) waits for work before it
sleeps. The default of 300,000 takes the CPU from other processes, and on a busy machine even from
the thread that it waits for. 0 costs time on a quiet machine. Source:
`benchmarks/threads.py`."""
BLAS_TIMEOUT = 14
"""Binary logarithm of the clock cycles that a thread of OpenBLAS (part of NumPy and SciPy) waits in
such a loop. The default of 28 is a tenth of a second, after every product and every solve."""

TABLE_THREADS = 1
"""Threads of Polars. A report makes thousands of queries on tables of some hundred rows; each query
takes less time than dividing it among threads would. Reading the manifest of a million images is no
slower."""

MAPPED_BYTES = 2**30
"""glibc maps arrays of more bytes separately, and returns each to the system when it is freed."""
KEPT_BYTES = 2**31 - 1
"""glibc returns freed memory at the end of the heap to the system only if there are more bytes."""
_TRIM_THRESHOLD, _MMAP_THRESHOLD, _ARENA_MAX = -1, -3, -8
"""Parameters of glibc's `mallopt` (malloc.h)."""


def set_thread_defaults(environment: MutableMapping[str, str]) -> None:
    """Let waiting threads sleep soon, and start no more threads than the container has CPUs.

    Args:
        environment: Environment of the process, changed in place.
    """
    if "OMP_WAIT_POLICY" not in environment:  # GOMP_SPINCOUNT would override the user's policy
        environment.setdefault("GOMP_SPINCOUNT", str(SPIN_COUNT))
    environment.setdefault("OPENBLAS_THREAD_TIMEOUT", str(BLAS_TIMEOUT))
    environment.setdefault("POLARS_MAX_THREADS", str(TABLE_THREADS))
    allowed = cpu_count()
    if allowed < visible_cpus():
        # MKL and OpenBLAS read this variable too.
        environment.setdefault("OMP_NUM_THREADS", str(allowed))


def keep_freed_memory(environment: Mapping[str, str]) -> bool:
    """Let glibc keep freed memory for the next array; return whether that worked.

    A forward pass allocates and frees megabytes for every layer. By default glibc returns this
    memory to the system, which fills every page with zeros before it hands it out again; that can
    take half of the time of a convolutional network (docs/machines.md). All threads share one heap,
    because the heap of a single thread has no room for large arrays.

    Args:
        environment: Environment of the process. If it configures glibc's allocator, nothing is
            changed.
    """
    set_by_user = any(key == "GLIBC_TUNABLES" or key.startswith("MALLOC_") for key in environment)
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if set_by_user or mallopt is None or not mallopt(_MMAP_THRESHOLD, MAPPED_BYTES):
        return False  # set by the user, or another C library
    return bool(mallopt(_TRIM_THRESHOLD, KEPT_BYTES) and mallopt(_ARENA_MAX, 1))


_WORDS = {signal.SIGINT: "Interrupted", signal.SIGTERM: "Terminated", signal.SIGHUP: "Hung up"}
NOTHING = "Nothing is kept yet: run the same command again."
_GRACE_S = 1.0
"""Seconds after the first signal in which further signals are ignored."""


class Interruption(BaseException):
    """A signal that ends the command. typer would turn KeyboardInterrupt into a silent exit."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number
        self.kept = ""
        """The command's sentence about the work that is kept, see `keeps`."""
        self.is_empty = False
        """Whether the command that is interrupted has nothing to keep yet."""

    def __str__(self) -> str:
        return f"{_WORDS[signal.Signals(self.number)]}. {self.kept}".rstrip()


@contextmanager
def keeps(what: str) -> Iterator[None]:
    """Let an interruption within the context report that `what` is kept; also a decorator.

    Of nested contexts, the outermost is reported, because it describes the whole command.
    """
    try:
        yield
    except Interruption as interruption:
        interruption.kept = NOTHING if interruption.is_empty else what
        interruption.is_empty = False
        raise


_arrived: Interruption | None = None
_ending_since: float | None = None
"""Monotonic time of `raise_no_more`; None while a signal still raises an exception."""


def arrived() -> Interruption | None:
    """Return the interruption, even if the clean-up has raised another error since."""
    return _arrived


def heed_signals() -> None:
    """Turn signals into `Interruption`, except those that already have a handler or are ignored."""
    global _arrived, _ending_since
    _arrived = _ending_since = None
    for number in _WORDS:
        if signal.getsignal(number) in (signal.SIG_DFL, signal.default_int_handler):
            signal.signal(number, _interrupt)


def raise_no_more() -> None:
    """Stop raising exceptions: ignore signals for a second; later signals end the process."""
    global _ending_since
    if _ending_since is None:
        _ending_since = time.monotonic()


def _interrupt(number: int, frame: FrameType | None) -> None:
    global _arrived
    if _ending_since is None:
        raise_no_more()
        _arrived = Interruption(number)
        raise _arrived
    if time.monotonic() - _ending_since >= _GRACE_S:
        signal.signal(number, signal.SIG_DFL)
        signal.raise_signal(number)


def claimed_folder(out: Path) -> AbstractContextManager[None]:
    """Make this the only process that writes into the folder `out`; see `claim_folder`."""
    check_writable(out)
    return claim_folder(out)


def claimed_file(out: Path) -> AbstractContextManager[None]:
    """Make this the only process that writes the file `out`; see `claim_file`."""
    check_writable(out)
    return claim_file(out)


@contextmanager
def claimed_head(out: Path, *, overwrite: bool) -> Iterator[None]:
    """Claim the head file `out`, and check that it is new or, with `overwrite`, a head of clinit.

    Raises:
        HeadError: If `out` exists and may not be replaced.
    """
    with claimed_file(out):
        from clinit.extract.cache.head import foreign_to_head

        check_free(out, "head", foreign_to_head, HeadError, overwrite=overwrite)
        yield

"""Set defaults for the threads and the memory of PyTorch, SciPy and Polars.

The defaults only affect libraries that are loaded later, so they are set first. Values that the
user has set are not changed.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, MutableMapping

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
    set_by_user = any(
        name == "GLIBC_TUNABLES" or name.startswith("MALLOC_") for name in environment
    )
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if set_by_user or mallopt is None or not mallopt(_MMAP_THRESHOLD, MAPPED_BYTES):
        return False  # set by the user, or another C library
    return bool(mallopt(_TRIM_THRESHOLD, KEPT_BYTES) and mallopt(_ARENA_MAX, 1))

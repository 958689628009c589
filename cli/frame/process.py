"""Defaults of the process, for the threads and the memory of PyTorch, SciPy and Polars.

They hold for libraries loaded afterwards, so they are set first; values set by the user are left
alone.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, MutableMapping

from clinit.machine import cpu_count, visible_cpus

SPIN_COUNT = 1000
"""Turns of the loop in which a thread of GNU's OpenMP, which PyTorch brings, waits for work
before it sleeps. Its default of 300,000 takes the CPU from whoever else would work: other
processes, and on a busy machine the very thread that is waited for. Not to wait at all costs time
on a quiet machine. Measured by `benchmarks/threads.py`."""
BLAS_TIMEOUT = 14
"""Binary logarithm of the clock cycles in which a thread of OpenBLAS, which NumPy and SciPy bring,
waits likewise. Its default of 28 is a tenth of a second, after every product and every solve."""

TABLE_THREADS = 1
"""Threads of Polars. A report asks thousands of questions to tables of some hundred rows, each of
which costs more to share out than to answer; the manifest of a million images is no slower."""

MAPPED_BYTES = 2**30
"""Size from which glibc maps an array of its own, which returns to the system when it is freed."""
KEPT_BYTES = 2**31 - 1
"""Freed bytes at the end of the heap from which glibc returns them to the system."""
_TRIM_THRESHOLD, _MMAP_THRESHOLD, _ARENA_MAX = -1, -3, -8
"""Parameters of glibc's `mallopt` (malloc.h)."""


def set_thread_defaults(environment: MutableMapping[str, str]) -> None:
    """Let waiting threads sleep soon, and start no more threads than the container has CPUs.

    Args:
        environment: Environment of the process, changed in place.
    """
    if "OMP_WAIT_POLICY" not in environment:  # GOMP_SPINCOUNT would win against it
        environment.setdefault("GOMP_SPINCOUNT", str(SPIN_COUNT))
    environment.setdefault("OPENBLAS_THREAD_TIMEOUT", str(BLAS_TIMEOUT))
    environment.setdefault("POLARS_MAX_THREADS", str(TABLE_THREADS))
    allowed = cpu_count()
    if allowed < visible_cpus():
        # MKL and OpenBLAS read it too.
        environment.setdefault("OMP_NUM_THREADS", str(allowed))


def keep_freed_memory(environment: Mapping[str, str]) -> bool:
    """Let glibc keep freed memory for the next array, and return whether it does.

    A forward pass allocates and frees megabytes for every layer. By default glibc returns them to
    the system, which hands them out again page by page, each filled with zeros: up to half of the
    time of a convolutional network (docs/machines.md). Threads share one heap, because heaps of
    single threads cannot hold large arrays.

    Args:
        environment: Environment of the process, whose settings of glibc's allocator win.
    """
    set_by_user = any(
        name == "GLIBC_TUNABLES" or name.startswith("MALLOC_") for name in environment
    )
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if set_by_user or mallopt is None or not mallopt(_MMAP_THRESHOLD, MAPPED_BYTES):
        return False  # other systems have other allocators
    return bool(mallopt(_TRIM_THRESHOLD, KEPT_BYTES) and mallopt(_ARENA_MAX, 1))

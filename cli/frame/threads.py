"""Defaults of the environment for the threads of PyTorch, SciPy, scikit-learn and Polars.

They are read when those libraries are loaded, so they are set before; what the user has set is
left alone.
"""

from __future__ import annotations

from collections.abc import MutableMapping

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


def set_thread_defaults(environment: MutableMapping[str, str]) -> None:
    """Let waiting threads sleep soon, and start no more threads than the container has CPUs.

    Args:
        environment: That of the process, changed in place.
    """
    if "OMP_WAIT_POLICY" not in environment:  # GOMP_SPINCOUNT would win against it
        environment.setdefault("GOMP_SPINCOUNT", str(SPIN_COUNT))
    environment.setdefault("OPENBLAS_THREAD_TIMEOUT", str(BLAS_TIMEOUT))
    environment.setdefault("POLARS_MAX_THREADS", str(TABLE_THREADS))
    allowed = cpu_count()
    if allowed < visible_cpus():
        # MKL and OpenBLAS read it too.
        environment.setdefault("OMP_NUM_THREADS", str(allowed))

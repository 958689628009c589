"""Threads of BLAS and OpenMP beside the CPUs that the process may use."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from clinit.extract.doctor.finding import Finding, ok, warning

_COUNTS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
_WAITS = ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY", "KMP_BLOCKTIME", "OPENBLAS_THREAD_TIMEOUT")


def check_threads(environment: Mapping[str, str], threads: int, cpus: int) -> Iterator[Finding]:
    """Compare settings of threads with the CPUs.

    Args:
        environment: That of the process.
        threads: Threads of PyTorch.
        cpus: CPUs that the process may keep busy.
    """
    told = ", ".join(f"{n}={environment[n]}" for n in (*_COUNTS, *_WAITS) if n in environment)
    shown = f"{threads} of PyTorch on {cpus} CPU{'s' if cpus > 1 else ''}; {told or 'nothing set'}"
    bad = False
    for name in _COUNTS:
        if (text := environment.get(name)) is None:
            continue
        first = text.partition(",")[0].strip()
        if not first.isdecimal() or int(first) < 1:
            bad = True
            yield warning("threads", f"{name} is {text!r}, which is no number", f"unset {name}")
        elif int(first) > cpus:
            bad = True
            said = f"{name}={text} on {cpus} CPUs: threads wait for each other"
            yield warning("threads", said, f"export {name}={cpus}")
    if environment.get("OMP_WAIT_POLICY", "").lower() == "active":
        bad = True
        said = "OMP_WAIT_POLICY=active: idle threads keep CPUs busy that others could use"
        yield warning("threads", said, "unset OMP_WAIT_POLICY")
    if threads > cpus and not bad:
        bad = True
        yield warning("threads", shown, f"export OMP_NUM_THREADS={cpus}")
    if not bad:
        yield ok("threads", shown)

"""Limits of the system and of the container: open files, sizes of files, CPUs, memory."""

from __future__ import annotations

import resource
from collections.abc import Iterator

from clinit.extract.doctor.finding import Finding, fault, ok, warning
from clinit.machine import cpu_count, free_memory, visible_cpus

_FEW_FILES, _TOO_FEW_FILES = 1024, 128
"""Data loading and libraries hold some hundred files open at a time."""
_LITTLE_MEMORY, _TOO_LITTLE_MEMORY = 4 * 2**30, 2**30
"""A small backbone with its batches takes two gigabytes; PyTorch alone half of one."""


def check_limits() -> Iterator[Finding]:
    """Look at what the process may use."""
    yield _open_files(resource.getrlimit(resource.RLIMIT_NOFILE)[0])
    size = resource.getrlimit(resource.RLIMIT_FSIZE)[0]
    if size != resource.RLIM_INFINITY:
        told = f"no file may be larger than {size / 1e6:,.0f} MB"
        yield warning("file size", told, "ulimit -f unlimited")
    yield _cpus(cpu_count(), visible_cpus())
    yield _memory(free_memory())


def _open_files(limit: int) -> Finding:
    if limit == resource.RLIM_INFINITY:
        return ok("open files", "unlimited")
    told = f"at most {limit:,}"
    if limit < _TOO_FEW_FILES:
        return fault("open files", told, f"ulimit -n {4 * _FEW_FILES}")
    if limit < _FEW_FILES:
        return warning("open files", told, f"ulimit -n {4 * _FEW_FILES}")
    return ok("open files", told)


def _cpus(allowed: int, visible: int) -> Finding:
    if allowed < visible:
        return ok("CPUs", f"{allowed} of the {visible} visible ones, by the container's quota")
    return ok("CPUs", str(allowed))


def _memory(free: int) -> Finding:
    told = f"{free / 2**30:.1f} GB left for this process"
    if free < _TOO_LITTLE_MEMORY:
        return fault("memory", told, "End other processes, or raise the container's limit.")
    if free < _LITTLE_MEMORY:
        remedy = "Give smaller `--batch-size` and `--workers`, or raise the container's limit."
        return warning("memory", told, remedy)
    return ok("memory", told)

"""All checks, one after the other; one that fails by itself is a fault too."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path

from clinit.extract.doctor.codecs import check_codecs
from clinit.extract.doctor.cuda import check_cuda
from clinit.extract.doctor.cupy_solver import check_cupy
from clinit.extract.doctor.disk import PlannedCache, check_disk
from clinit.extract.doctor.finding import Finding, fault
from clinit.extract.doctor.limits import check_limits
from clinit.extract.doctor.storage import check_storage
from clinit.extract.doctor.terminal import check_terminal
from clinit.extract.doctor.threads import check_threads
from clinit.extract.doctor.versions import check_versions
from clinit.machine import cpu_count

Check = Callable[[], Iterable[Finding]]


def examine(
    out: Path, plan: PlannedCache | None, *, encoding: str | None, width: int
) -> Iterator[Finding]:
    """Yield what is found, check by check.

    Args:
        out: Where caches are to be written.
        plan: The cache that is to be written there; None looks at the free space alone.
        encoding: Encoding of the standard output.
        width: Its columns.
    """
    checks: dict[str, Check] = {
        "versions": check_versions,
        "CUDA": check_cuda,
        "CuPy": lambda: check_cupy(_cuda()),
        "images": check_codecs,
        "disk": partial(check_disk, out, plan),
        "storage": partial(check_storage, out),
        "limits": check_limits,
        "threads": lambda: check_threads(os.environ, _threads(), cpu_count()),
        "terminal": partial(check_terminal, encoding, width),
    }
    for subject, check in checks.items():
        yield from guarded(subject, check)


def guarded(subject: str, check: Check) -> Iterator[Finding]:
    """Yield what a check finds; where it cannot be made, that is the finding."""
    try:
        yield from check()
    except Exception as error:  # a broken installation raises anything
        lines = str(error).splitlines() or [type(error).__name__]
        told = f"cannot be looked at: {type(error).__name__}: {lines[0][:200]}"
        yield fault(subject, told, "pip install --force-reinstall clinit")


def _cuda() -> str | None:
    import torch

    return torch.version.cuda if torch.cuda.is_available() else None


def _threads() -> int:
    import torch

    return torch.get_num_threads()

"""Faults of this machine that keep clinit from working, or from working well.

One check after the other; a check that fails by itself is a fault too, for a broken installation
raises anything.
"""

from __future__ import annotations

import fcntl
import importlib
import importlib.util
import os
import platform
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path

from packaging.requirements import Requirement

from clinit.errors import reason
from clinit.machine import cpu_count, free_memory, visible_cpus

_GIGABYTE = 2**30
_DRIVER = Path("/proc/driver/nvidia/version")


class State(StrEnum):
    """How bad it is."""

    ok = "ok"
    warning = "warning"
    """It works, but slower or with less than it could."""
    fault = "fault"
    """Something will not work."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at."""

    subject: str
    state: State
    told: str
    """The finding."""
    remedy: str = ""
    """A command or another repair. Empty if nothing is to be done."""


def ok(subject: str, told: str) -> Finding:
    """Return a finding with which all is well."""
    return Finding(subject, State.ok, told)


def warning(subject: str, told: str, remedy: str) -> Finding:
    """Return something that costs speed or comfort."""
    return Finding(subject, State.warning, told, remedy)


def fault(subject: str, told: str, remedy: str) -> Finding:
    """Return something that will not work."""
    return Finding(subject, State.fault, told, remedy)


def examine(out: Path) -> Iterator[Finding]:
    """Yield the findings, check by check.

    Args:
        out: Folder for caches.
    """
    checks: dict[str, Callable[[], Iterable[Finding]]] = {
        "versions": check_versions,
        "CUDA": check_cuda,
        "CuPy": check_cupy,
        "storage": partial(check_storage, out),
        "limits": check_limits,
    }
    for subject, check in checks.items():
        yield from guarded(subject, check)


def guarded(subject: str, check: Callable[[], Iterable[Finding]]) -> Iterator[Finding]:
    """Yield the findings of a check; a check that fails is itself a finding."""
    try:
        yield from check()
    except Exception as error:
        why = f"the check failed: {type(error).__name__}: {_first_line(error)}"
        yield fault(subject, why, "pip install --force-reinstall clinit")


def check_versions(requirements: Sequence[str] | None = None) -> Iterator[Finding]:
    """Compare the installed versions with the ones that clinit asks for."""
    yield ok("Python", f"{platform.python_version()} on {platform.platform(terse=True)}")
    present = [f"clinit {version('clinit')}"]
    asked = requires("clinit") or () if requirements is None else requirements
    for each in map(Requirement, asked):
        try:
            there = version(each.name)
        except PackageNotFoundError:
            if each.marker is None:  # else it is of an extra
                yield fault("packages", f"{each.name} is not installed", f"pip install '{each}'")
            continue
        if each.specifier.contains(there, prereleases=True):
            present.append(f"{each.name} {there}")
        else:
            wrong = f"{each.name} {there} is installed, expected {each.specifier}"
            yield fault("packages", wrong, f"pip install '{each.name}{each.specifier}'")
    yield ok("packages", ", ".join(dict.fromkeys(present)))


def check_cuda() -> Iterator[Finding]:
    """Look for devices, and compute something on each: a broken driver raises an error."""
    import torch

    if not torch.cuda.is_available():
        if shutil.which("nvidia-smi") is None and not _DRIVER.exists():
            yield ok("CUDA", "no GPU: everything runs on the CPU")
            return
        cuda = torch.version.cuda
        yield warning(
            "CUDA",
            f"this machine has an NVIDIA driver, but PyTorch (CUDA {cuda}) finds no device",
            "Look at `nvidia-smi`; start a container with `--gpus all`."
            if cuda
            else "pip install --force-reinstall torch torchvision torchcodec",
        )
    for index in range(torch.cuda.device_count()):
        device = torch.device("cuda", index)
        free, total = (size / _GIGABYTE for size in torch.cuda.mem_get_info(device))
        name = f"{torch.cuda.get_device_name(device)}, {free:.1f} of {total:.1f} GB free"
        if free < 2:
            yield warning("CUDA", f"{name}: in use by other processes", "nvidia-smi")
            continue
        torch.ones(64, 64, device=device).matmul(torch.ones(64, 1, device=device)).cpu()
        yield ok("CUDA", f"{name}, CUDA {torch.version.cuda}; it works")


def check_cupy(cuda: str | None = None) -> Iterator[Finding]:
    """Solve and compile with CuPy, for the CUDA that PyTorch computes with, or for `cuda`."""
    import torch

    if cuda is None and torch.cuda.is_available():
        cuda = torch.version.cuda
    if cuda is None:
        yield ok("CuPy", "no GPU: not needed")
        return
    extra = f'pip install "clinit[cuda{cuda.partition(".")[0]}]"'
    if importlib.util.find_spec("cupy") is None:
        yield warning("CuPy", "not installed: linear systems are solved on the CPU", extra)
        return
    try:
        cupy = importlib.import_module("cupy")
        cupy.linalg.solve(cupy.eye(2), cupy.ones(2))
        cupy.ElementwiseKernel("float64 x", "float64 z", "z = x + 1", "probe")(cupy.ones(2))
    except Exception as problem:  # no compiler, no library, one for another driver
        yield fault("CuPy", f"it cannot be used: {_first_line(problem)}", extra)
    else:
        yield ok("CuPy", "it solves and compiles a kernel")


def nearest(folder: Path) -> Path:
    """Return the folder itself, or the nearest above it that exists."""
    folder = folder.absolute()
    # `is_dir` raises if a name is too long.
    return next(each for each in (folder, *folder.parents) if os.path.isdir(each))  # noqa: PTH112


def check_storage(folder: Path) -> Iterator[Finding]:
    """Write, rename and lock a file in the nearest folder that exists; it is removed again."""
    there = nearest(folder)
    try:
        with tempfile.TemporaryDirectory(prefix=".clinit-doctor-", dir=there) as made:
            draft, place = Path(made) / "draft", Path(made) / "file"
            draft.write_bytes(b"clinit")
            draft.replace(place)
            locks = _can_lock(place)
    except OSError as error:
        why = f"nothing can be written at {there}: {reason(error)}"
        yield fault("storage", why, "Choose a folder that you can write to with `--out`.")
        return
    if not locks:
        why = f"{there} cannot lock files: two commands on one cache would not notice each other"
        yield warning("storage", why, "Run one command on a cache at a time, or use a local disk.")
    else:
        free = shutil.disk_usage(there).free / 1e9
        yield ok("storage", f"{there} is writable and supports locks, {free:,.1f} GB are free")


def _can_lock(path: Path) -> bool:
    try:
        with path.open() as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def check_limits() -> Iterator[Finding]:
    """Look at what the process may use: CPUs, memory."""
    yield ok("CPUs", f"{cpu_count()} of the {visible_cpus()} visible ones")
    free = free_memory() / _GIGABYTE
    told = f"{free:.1f} GB left for this process"
    if free < 1:  # PyTorch alone takes half a gigabyte
        yield fault("memory", told, "End other processes, or raise the container's limit.")
    elif free < 4:
        remedy = "Give smaller `--batch-size` and `--workers`, or raise the container's limit."
        yield warning("memory", told, remedy)
    else:
        yield ok("memory", told)


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:200]

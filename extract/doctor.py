"""Find faults of this machine that stop clinit or slow it down.

A check that raises an exception is a fault too, because a broken installation can raise anything.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import platform
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from packaging.requirements import Requirement

from clinit.machine import cpu_count, free_memory, visible_cpus

if TYPE_CHECKING:
    import torch

_GIGABYTE = 2**30
_DRIVER = Path("/proc/driver/nvidia/version")


State = Literal["ok", "warning", "fault"]
"""A warning costs speed or functions; a fault makes commands fail."""


@dataclass(frozen=True, slots=True)
class Finding:
    """Result of checking one thing, such as a package or a device."""

    subject: str
    told: str
    """The result in words."""
    remedy: str = ""
    """A command or another repair; empty if no repair is necessary."""
    state: State = "ok"


def examine() -> Iterator[Finding]:
    """Run all checks; yield their findings."""
    checks: dict[str, Callable[[], Iterable[Finding]]] = {
        "versions": check_versions,
        "CUDA": check_cuda,
        "CuPy": check_cupy,
        "programs": check_programs,
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
        yield Finding(subject, why, "pip install --force-reinstall clinit", "fault")


def check_versions(requirements: Sequence[str] | None = None) -> Iterator[Finding]:
    """Compare the installed versions with the versions that clinit requires."""
    yield Finding("Python", f"{platform.python_version()} on {platform.platform(terse=True)}")
    present = [f"clinit {version('clinit')}"]
    asked = requires("clinit") or () if requirements is None else requirements
    for each in map(Requirement, asked):
        try:
            there = version(each.name)
        except PackageNotFoundError:
            if each.marker is None:  # with a marker, the package belongs to an optional extra
                yield Finding(
                    "packages", f"{each.name} is not installed", f"pip install '{each}'", "fault"
                )
            continue
        if each.specifier.contains(there, prereleases=True):
            present.append(f"{each.name} {there}")
        else:
            wrong = f"{each.name} {there} is installed, expected {each.specifier}"
            yield Finding("packages", wrong, f"pip install '{each.name}{each.specifier}'", "fault")
    yield Finding("packages", ", ".join(dict.fromkeys(present)))


def check_cuda() -> Iterator[Finding]:
    """Look for devices, and multiply matrices on each: a broken driver raises an error."""
    import torch

    if not torch.cuda.is_available():
        if shutil.which("nvidia-smi") is None and not _DRIVER.exists():
            yield Finding("CUDA", "no GPU: everything runs on the CPU")
            return
        cuda = torch.version.cuda
        yield Finding(
            "CUDA",
            f"this machine has an NVIDIA driver, but PyTorch (CUDA {cuda}) finds no device",
            f"`nvidia-smi` must list a GPU, and CUDA {cuda} or later: else update the driver, or"
            " install PyTorch for an older CUDA. Start a container with `--gpus all`."
            if cuda
            else "pip install --force-reinstall torch torchvision torchcodec",
            "warning",
        )
    for index in range(torch.cuda.device_count()):
        device = torch.device("cuda", index)
        free, total = (size / _GIGABYTE for size in torch.cuda.mem_get_info(device))
        name = f"{torch.cuda.get_device_name(device)}, {free:.1f} of {total:.1f} GB free"
        if free < 2:
            yield Finding("CUDA", f"{name}: in use by other processes", "nvidia-smi", "warning")
            continue
        torch.ones(64, 64, device=device).matmul(torch.ones(64, 1, device=device)).cpu()
        yield Finding("CUDA", f"{name}, CUDA {torch.version.cuda}; it works")
        yield from check_programs_on(device)


def check_programs_on(device: torch.device) -> Iterator[Finding]:
    """Compile three operations on a device: Triton needs a C compiler, and may need Python.h."""
    import torch

    from clinit.extract.network.compiled import keep_programs_private

    keep_programs_private()
    try:
        torch.compile(lambda x: (2 * x + 1).relu())(torch.ones(8, device=device)).cpu()
    except Exception as problem:
        why = f"networks are not compiled for the GPU: {_first_line(problem)}"
        yield Finding("programs", why, "Install gcc and Python's headers (python3-dev).", "warning")
    else:
        yield Finding("programs", "networks are compiled for the GPU")


def check_cupy(cuda: str | None = None) -> Iterator[Finding]:
    """Solve a system and compile a kernel with CuPy, for `cuda` or PyTorch's CUDA version."""
    import torch

    if cuda is None and torch.cuda.is_available():
        cuda = torch.version.cuda
    if cuda is None:
        yield Finding("CuPy", "no GPU: not needed")
        return
    extra = f'pip install "clinit[cuda{cuda.partition(".")[0]}]"'
    if importlib.util.find_spec("cupy") is None:
        why = "not installed: linear systems are solved on the CPU"
        yield Finding("CuPy", why, extra, "warning")
        return
    try:
        cupy = importlib.import_module("cupy")
        cupy.linalg.solve(cupy.eye(2), cupy.ones(2))
        cupy.ElementwiseKernel("float64 x", "float64 z", "z = x + 1", "probe")(cupy.ones(2))
    except Exception as problem:  # no compiler, no library, or a library for another driver
        yield Finding("CuPy", f"it cannot be used: {_first_line(problem)}", extra, "fault")
    else:
        yield Finding("CuPy", "it solves and compiles a kernel")


def check_programs() -> Iterator[Finding]:
    """Tell where PyTorch keeps compiled networks, and look for a compiler."""
    from clinit.extract.network.compiled import keep_programs_private

    folder = keep_programs_private()
    if shutil.which(compiler := os.environ.get("CXX", "g++")) is None:
        why = f"no {compiler}: networks are not compiled"
        yield Finding("programs", why, "Install g++.", "warning")
    else:
        yield Finding("programs", f"compiled networks are kept in {folder}")


def check_limits() -> Iterator[Finding]:
    """Check how many CPUs and how much memory this process may use."""
    yield Finding("CPUs", f"{cpu_count()} of the {visible_cpus()} visible CPUs")
    free = free_memory() / _GIGABYTE
    told = f"{free:.1f} GB left for this process"
    if free < 1:  # PyTorch alone takes half a gigabyte
        remedy = "End other processes, or raise the container's limit."
        yield Finding("memory", told, remedy, "fault")
    elif free < 4:
        remedy = "Give smaller `--batch-size` and `--workers`, or raise the container's limit."
        yield Finding("memory", told, remedy, "warning")
    else:
        yield Finding("memory", told)


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:200]

"""What on this machine keeps clinit from working, or from working well.

One check after the other; a check that fails by itself is a fault too, for a broken installation
raises anything.
"""

from __future__ import annotations

import codecs
import importlib
import importlib.util
import io
import os
import platform
import resource
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement

from clinit.errors import ClinitError, reason
from clinit.files.lock import claim_file
from clinit.machine import cpu_count, free_memory, visible_cpus

LEAST_PYTHON = (3, 11)
FORMATS = {"JPEG": 6.0, "PNG": 0.0, "WebP": 6.0}
"""Largest mean difference of a pixel, in steps of 255: what the compression loses."""
_TOLERANCE = 1e-10
"""Of products, solutions and kernels in float64, relative to the largest value."""
_GIGABYTE = 2**30
_DRIVER = Path("/proc/driver/nvidia/version")
_COUNTS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
_WAITS = ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY", "KMP_BLOCKTIME", "OPENBLAS_THREAD_TIMEOUT")


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
    """What was found."""
    remedy: str = ""
    """What mends it: a command where there is one. Empty where nothing is to be done."""


Check = Callable[[], Iterable[Finding]]


def ok(subject: str, told: str) -> Finding:
    """Return a finding with which all is well."""
    return Finding(subject, State.ok, told)


def warning(subject: str, told: str, remedy: str) -> Finding:
    """Return something that costs speed or comfort."""
    return Finding(subject, State.warning, told, remedy)


def fault(subject: str, told: str, remedy: str) -> Finding:
    """Return something that will not work."""
    return Finding(subject, State.fault, told, remedy)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedCache:
    """A cache that is to be extracted."""

    rows: int
    """Images of all splits."""
    dim: int
    item_bytes: int = 2
    """Bytes of a number: 2 of float16, 4 of float32."""

    @property
    def nbytes(self) -> int:
        """Bytes that it will take: features, labels, digests and the shard in flight."""
        return round(1.05 * self.rows * (self.dim * self.item_bytes + 16))


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
        "CuPy": check_cupy,
        "images": check_codecs,
        "disk": partial(check_disk, out, plan),
        "storage": partial(check_storage, out),
        "limits": check_limits,
        "threads": check_threads,
        "terminal": partial(check_terminal, encoding, width),
    }
    for subject, check in checks.items():
        yield from guarded(subject, check)


def guarded(subject: str, check: Check) -> Iterator[Finding]:
    """Yield what a check finds; where it cannot be made, that is the finding."""
    try:
        yield from check()
    except Exception as error:
        told = f"cannot be looked at: {type(error).__name__}: {_first_line(error)}"
        yield fault(subject, told, "pip install --force-reinstall clinit")


def check_versions(requirements: Sequence[str] | None = None) -> Iterator[Finding]:
    """Compare Python and what is installed with what clinit asks for."""
    found, least = ".".join(map(str, sys.version_info[:3])), ".".join(map(str, LEAST_PYTHON))
    told = f"Python {found} on {platform.platform(terse=True)}"
    if tuple(sys.version_info[:2]) < LEAST_PYTHON:
        yield fault("Python", f"{told}, expected {least} or newer", f"Install Python {least}.")
    else:
        yield ok("Python", told)
    present = [f"clinit {version('clinit')}"]
    asked = requires("clinit") or () if requirements is None else requirements
    for each in map(Requirement, asked):
        try:
            there = version(each.name)
        except PackageNotFoundError:
            if each.marker is None:  # else it is of an extra
                yield fault("packages", f"{each.name} is not installed", f"pip install '{each}'")
            continue
        if not each.specifier.contains(there, prereleases=True):
            told = f"{each.name} {there} is installed, expected {each.specifier}"
            yield fault("packages", told, f"pip install '{each.name}{each.specifier}'")
        else:
            present.append(f"{each.name} {there}")
    yield ok("packages", ", ".join(dict.fromkeys(present)))


def check_cuda() -> Iterator[Finding]:
    """Look for devices, and multiply two matrices on each."""
    import torch

    if torch.cuda.is_available():
        yield from map(_of_device, range(torch.cuda.device_count()))
    elif shutil.which("nvidia-smi") is None and not _DRIVER.exists():
        yield ok("CUDA", "no GPU: everything runs on the CPU")
    elif torch.version.cuda is None:
        told = "this machine has an NVIDIA driver, but PyTorch was built without CUDA"
        yield warning("CUDA", told, "pip install --force-reinstall torch torchvision torchcodec")
    else:
        told = f"there is an NVIDIA driver, but PyTorch (CUDA {torch.version.cuda}) finds no device"
        remedy = "Look at `nvidia-smi`; in a container, start it with `--gpus all`."
        yield warning("CUDA", told, remedy)


def _of_device(index: int) -> Finding:
    import torch

    device = torch.device("cuda", index)
    free, total = (size / _GIGABYTE for size in torch.cuda.mem_get_info(device))
    told = (
        f"{torch.cuda.get_device_name(device)}, {free:.1f} of {total:.1f} GB free,"
        f" CUDA {torch.version.cuda}"
    )
    error = product_error(str(device))
    if not error <= _TOLERANCE:
        remedy = "Look at `nvidia-smi -q` for errors of the memory; install the driver again."
        return fault("CUDA", f"{told}; a product of matrices is wrong by {error:.1g}", remedy)
    if free < 2:
        return warning("CUDA", f"{told}: others are using it", "nvidia-smi")
    return ok("CUDA", f"{told}; a product of matrices agrees with the CPU to {error:.0e}")


def product_error(device: str) -> float:
    """Return how far a product on a device is from that on the CPU, relative to its largest."""
    import torch

    generator = torch.Generator().manual_seed(0)
    one, two = torch.randn(2, 256, 256, generator=generator, dtype=torch.float64)
    expected = one @ two
    found = (one.to(device) @ two.to(device)).cpu()
    return float((found - expected).abs().max() / expected.abs().max())


def check_cupy(cuda: str | None = None) -> Iterator[Finding]:
    """Solve and compile with CuPy, for the CUDA that PyTorch computes with, or for `cuda`."""
    import torch

    if cuda is None and torch.cuda.is_available():
        cuda = torch.version.cuda
    is_there = importlib.util.find_spec("cupy") is not None
    if cuda is None:
        told = "installed, but there is no GPU" if is_there else "not installed, and no GPU"
        yield ok("CuPy", f"{told} to use it on")
        return
    extra = f'pip install "clinit[cuda{cuda.partition(".")[0]}]"'
    if not is_there:
        told = "not installed: linear systems are solved on the CPU, not on the GPU"
        yield warning("CuPy", told, extra)
        return
    try:
        error = cupy_error(importlib.import_module("cupy"))
    except Exception as problem:  # no compiler, no library, one for another driver
        yield fault("CuPy", f"it cannot be used: {_first_line(problem)}", extra)
        return
    if error > _TOLERANCE:
        yield fault("CuPy", f"a solve or a kernel is wrong by {error:.1g}", extra)
    else:
        yield ok("CuPy", f"a solve and a kernel agree with NumPy to {error:.0e}")


def cupy_error(cupy: Any) -> float:
    """Return how far a solved system and a kernel are from NumPy's, relative to the largest."""
    import numpy as np

    rng = np.random.default_rng(0)
    matrix, vector = rng.normal(size=(64, 64)) + 64 * np.eye(64), rng.normal(size=64)
    solved = cupy.linalg.solve(cupy.asarray(matrix), cupy.asarray(vector))
    kernel = cupy.ElementwiseKernel("float64 x, float64 y", "float64 z", "z = x * y + 1", "probe")
    compiled = kernel(cupy.asarray(vector), cupy.asarray(vector))
    pairs = ((solved, np.linalg.solve(matrix, vector)), (compiled, vector * vector + 1))
    return max(
        float(abs(cupy.asnumpy(found) - wanted).max() / abs(wanted).max())
        for found, wanted in pairs
    )


def check_codecs() -> Iterator[Finding]:
    """Decode an image of each format that is made in memory, as an extraction does."""
    good, remedy = [], "pip install --force-reinstall pillow torchcodec torch"
    for name, tolerance in FORMATS.items():
        try:
            error = decoding_error(name)
        except Exception as problem:  # of a library that is missing, or built for another version
            yield fault("images", f"{name} cannot be decoded: {_first_line(problem)}", remedy)
            continue
        if not error <= tolerance:
            told = f"{name} is decoded to other pixels: {error:.1f} of 255 steps on average"
            yield fault("images", told, remedy)
        else:
            good.append(name)
    if good:
        yield ok("images", f"{', '.join(good)} are decoded as they were written")


def decoding_error(format: str) -> float:
    """Return the mean difference of pixels that are encoded and decoded again, in 255 steps."""
    import numpy as np
    from PIL import Image

    from clinit.extract.dataset.decode import decode
    from clinit.extract.dataset.known import MAX_PIXELS

    ramp = np.linspace(20, 230, 32)  # smooth: compression loses little
    pixels = np.stack([*np.meshgrid(ramp, ramp), np.full((32, 32), 120.0)], -1).astype(np.uint8)
    content = io.BytesIO()
    Image.fromarray(pixels).save(content, format=format, quality=95)
    found = decode(content.getvalue(), max_pixels=MAX_PIXELS).permute(1, 2, 0).numpy()
    return float(np.abs(found.astype(float) - pixels).mean())


def check_disk(folder: Path, plan: PlannedCache | None) -> Iterator[Finding]:
    """Compare the free space of the nearest folder that exists with a planned cache."""
    try:
        there = nearest(folder)
        free = shutil.disk_usage(there).free
    except OSError as error:
        told = f"the free space of {folder} cannot be asked for: {reason(error)}"
        yield fault("disk", told, "Choose another folder with `--out`.")
        return
    told = f"{free / 1e9:,.1f} GB free at {there}"
    if plan is not None:
        told += f"; a cache of {plan.rows:,} x {plan.dim:,} takes {plan.nbytes / 1e9:,.1f} GB"
    if plan is not None and plan.nbytes > free:
        lacking = f"{(plan.nbytes - free) / 1e9:,.1f} GB"
        yield fault("disk", told, f"Free {lacking}, or choose another disk with `--out`.")
    elif plan is None and free < _GIGABYTE:
        yield warning("disk", told, "Free space, or choose another disk with `--out`.")
    else:
        yield ok("disk", told)


def nearest(folder: Path) -> Path:
    """Return the folder itself, or the nearest above it that exists.

    Raises:
        OSError: If it cannot be looked at: its name is too long, or it is in a folder that may
            not be read.
    """
    folder = folder.absolute()
    return next(each for each in (folder, *folder.parents) if each.is_dir())


def check_storage(folder: Path) -> Iterator[Finding]:
    """Write, rename and lock a file in the nearest folder that exists; it is removed again."""
    there, notes = folder, list[str]()
    try:
        there = nearest(folder)
        with tempfile.TemporaryDirectory(prefix=".clinit-doctor-", dir=there) as draft:
            place = Path(draft) / "file"
            with claim_file(place, on_unlocked=notes.append):
                (Path(draft) / "draft").write_bytes(b"clinit")
                (Path(draft) / "draft").replace(place)
    except (OSError, ClinitError) as error:
        told = f"nothing can be written at {there}: {getattr(error, 'strerror', None) or error}"
        yield fault("storage", told, "Choose a folder that you can write to with `--out`.")
        return
    if notes:
        told = f"{there} cannot lock files: two commands on one cache would not notice each other"
        yield warning("storage", told, "Run one command on a cache at a time, or use a local disk.")
    else:
        yield ok("storage", f"{there} can be written and locked")


def check_limits() -> Iterator[Finding]:
    """Look at what the process may use: open files, sizes of files, CPUs, memory."""
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    told = "unlimited" if files == resource.RLIM_INFINITY else f"at most {files:,}"
    if told == "unlimited" or files >= 1024:
        yield ok("open files", told)
    else:  # data loading and libraries hold some hundred files open at a time
        yield (fault if files < 128 else warning)("open files", told, "ulimit -n 4096")
    size = resource.getrlimit(resource.RLIMIT_FSIZE)[0]
    if size != resource.RLIM_INFINITY:
        told = f"no file may be larger than {size / 1e6:,.0f} MB"
        yield warning("file size", told, "ulimit -f unlimited")
    allowed, visible = cpu_count(), visible_cpus()
    quota = f"{allowed} of the {visible} visible ones, by the container's quota"
    yield ok("CPUs", quota if allowed < visible else str(allowed))
    free = free_memory() / _GIGABYTE
    told = f"{free:.1f} GB left for this process"
    if free < 1:  # PyTorch alone takes half a gigabyte
        yield fault("memory", told, "End other processes, or raise the container's limit.")
    elif free < 4:
        remedy = "Give smaller `--batch-size` and `--workers`, or raise the container's limit."
        yield warning("memory", told, remedy)
    else:
        yield ok("memory", told)


def check_threads(
    environment: Mapping[str, str] = os.environ,
    threads: int | None = None,
    cpus: int | None = None,
) -> Iterator[Finding]:
    """Compare settings of threads with the CPUs.

    Args:
        environment: That of the process.
        threads: Threads of PyTorch.
        cpus: CPUs that the process may keep busy.
    """
    import torch

    threads, cpus = threads or torch.get_num_threads(), cpus or cpu_count()
    told = ", ".join(f"{n}={environment[n]}" for n in (*_COUNTS, *_WAITS) if n in environment)
    shown = f"{threads} of PyTorch on {cpus} CPU{'s' if cpus > 1 else ''}; {told or 'nothing set'}"
    bad = []
    for name in (name for name in _COUNTS if name in environment):
        first = environment[name].partition(",")[0].strip()
        if not first.isdecimal() or int(first) < 1:
            said = f"{name} is {environment[name]!r}, which is no number"
            bad.append(warning("threads", said, f"unset {name}"))
        elif int(first) > cpus:
            said = f"{name}={environment[name]} on {cpus} CPUs: threads wait for each other"
            bad.append(warning("threads", said, f"export {name}={cpus}"))
    if environment.get("OMP_WAIT_POLICY", "").lower() == "active":
        said = "OMP_WAIT_POLICY=active: idle threads keep CPUs busy that others could use"
        bad.append(warning("threads", said, "unset OMP_WAIT_POLICY"))
    if threads > cpus and not bad:
        bad.append(warning("threads", shown, f"export OMP_NUM_THREADS={cpus}"))
    yield from bad or [ok("threads", shown)]


def check_terminal(encoding: str | None, width: int) -> Iterator[Finding]:
    """Look at the encoding (None where there is none) and the columns of the output."""
    told = f"{encoding or 'no encoding'}, {width} columns"
    try:
        is_unicode = codecs.lookup(encoding or "ascii").name.startswith("utf")
    except LookupError:
        is_unicode = False
    if not is_unicode:
        said = f"{told}: names and figures lose characters that it lacks"
        yield warning("terminal", said, "export PYTHONIOENCODING=utf-8")
    elif width < 60:
        yield warning("terminal", f"{told}: tables are cut", "Widen it, or export COLUMNS=100")
    else:
        yield ok("terminal", told)


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:200]

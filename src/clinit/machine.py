"""Find the CPUs, memory and device that this process may use; see shortages, measure time.

Inside a container, a process sees all processors and memory of the host. The limits of the
container are in the files of its control groups (cgroups, version 2): the group of the process and
all groups above it, of which the tightest limit applies. joblib reads only the topmost group;
psutil, which returns the free memory of the host, reads none.

Source: the Linux kernel's documentation of cgroup-v2.
"""

from __future__ import annotations

import errno
import math
import os
import re
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from clinit.errors import DeviceError

if TYPE_CHECKING:
    import torch

_ROOT = Path("/")
_SHORTAGE = re.compile(
    r"ca(n't|nnot) allocate|DefaultCPUAllocator|(out of|insufficient|not enough) memory|bad_alloc"
    r"|CUBLAS_STATUS_ALLOC_FAILED|start new thread|failed to map segment from shared object",
    re.IGNORECASE,
)
"""Messages of PyTorch, CUDA, the image libraries, Python and the dynamic linker if they get no
memory or no thread."""
_SHORTAGE_TYPES = {"MemoryError", "OutOfMemoryError"}
"""Names of types, so that the libraries that define `OutOfMemoryError` need not be loaded."""
_OF_RUST = {"PanicException", "PolarsError", "SafetensorError"}
_NUMBER = re.compile(r"\(os error (\d+)\)|\berrno = (\d+)")
"""Forms in which Rust and HDF5 write the number of a system error."""


def cpu_count(root: Path = _ROOT) -> int:
    """Return how many CPUs this process may keep busy: at least 1.

    A quota is rounded up, because half a CPU is worth a thread.

    Args:
        root: Folder that contains `proc` and `sys`.
    """
    quotas = [math.ceil(share) for group in _groups(root) for share in _cpu_quota(group)]
    return max(1, min([visible_cpus(), *quotas]))


def visible_cpus() -> int:
    """Return the number of CPUs that this process may run on, as most libraries count them.

    This respects a cpuset, but not a quota of CPU time.
    """
    return len(os.sched_getaffinity(0))


def free_memory(device: torch.device | None = None, *, root: Path = _ROOT) -> int:
    """Return how many bytes of memory this process may still allocate.

    On the host, file buffers that the kernel can release count as free; on a CUDA device, memory
    that PyTorch keeps for reuse counts as free.

    Args:
        device: The device; None and the CPU mean the host.
        root: Folder that contains `proc` and `sys`.
    """
    if device is not None and device.type == "cuda":
        import torch  # not above, like psutil: the command line counts CPUs before it loads either

        free, _ = torch.cuda.mem_get_info(device)
        return free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    import psutil

    available = int(psutil.virtual_memory().available)
    return min([available, *(n for group in _groups(root) for n in _memory_left(group))])


def out_of_memory(error: BaseException) -> bool:
    """Return whether an error reports a shortage of memory.

    If an error has a system number, only the number decides. Otherwise the message of a library or
    the system decides; other errors (`ValueError`) are ignored, because they may quote data.
    """
    if _types(error) & _SHORTAGE_TYPES:
        return True
    if number := error_number(error):
        return number == errno.ENOMEM
    spoken = isinstance(error, RuntimeError | OSError | ImportError)
    return spoken and _SHORTAGE.search(str(error)) is not None


def error_number(error: BaseException) -> int:
    """Return the system's number (`errno`) of an error; 0 if the error has no number.

    Errors of Polars, safetensors and HDF5 contain the number only in their message.
    """
    if isinstance(error, OSError) and error.errno is not None:
        return error.errno
    if not (isinstance(error, OSError) or _types(error) & _OF_RUST):
        return 0
    found = _NUMBER.search(str(error))
    return int(found[1] or found[2]) if found else 0


def _types(error: BaseException) -> set[str]:
    return {base.__name__ for base in type(error).__mro__}


def _groups(root: Path) -> Iterator[Path]:
    """Yield the folders of the cgroups of this process, from its own to the topmost visible.

    A folder may not exist: a container in the cgroup namespace of its host sees the path of its
    group on the host, although its own group is mounted as the topmost group.
    """
    found = re.search(r"^0::/(.*)$", _read(root / "proc/self/cgroup"), re.MULTILINE)
    own = PurePosixPath(found[1] if found else "")
    yield from (root / "sys/fs/cgroup" / group for group in (own, *own.parents))


def _cpu_quota(group: Path) -> list[float]:
    """Return how many CPUs a group may use, in a list that is empty without a limit."""
    try:
        quota, period = map(int, _read(group / "cpu.max").split())
    except ValueError:  # no such file, or `max 100000`
        return []
    return [quota / period] if quota > 0 and period > 0 else []


def _memory_left(group: Path) -> list[int]:
    """Return the bytes that a group has left, in a list that is empty without a limit."""
    try:
        left = int(_read(group / "memory.max")) - int(_read(group / "memory.current"))
    except ValueError:  # no such file, or `max`
        return []
    found = re.search(r"^inactive_file (\d+)$", _read(group / "memory.stat"), re.MULTILINE)
    return [max(0, left + (int(found[1]) if found else 0))]


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


CPU_WITH_BF16 = ("avx512_bf16", "amx_bf16", "bf16")
"""PyTorch's names of the bfloat16 instructions of x86 and Arm."""


def choose_device(name: str) -> torch.device:
    """Return the device called `name`; `auto` is CUDA if there is a device, else the CPU.

    A device with a number becomes PyTorch's current device, so that nothing lands on another.

    Args:
        name: `auto`, `cpu`, `cuda` or `cuda:N`.

    Raises:
        DeviceError: If it is no such name, the CUDA device does not exist, or PyTorch has no
            kernels for it.
    """
    import torch

    if not re.fullmatch("auto|cpu|cuda(:[0-9]+)?", name):
        raise DeviceError(
            f"--device {name} is no device", remedy="Give auto, cpu, cuda, or cuda:1 for GPU 1."
        )
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if name == "cpu" or (name == "auto" and not count):
        return torch.device("cpu")
    device = torch.device("cuda" if name == "auto" else name)
    if (device.index or 0) >= count:
        raise DeviceError(
            f"--device {name} needs a CUDA device, but PyTorch finds {count or 'none'}",
            remedy="Use --device cpu, or install a CUDA build of PyTorch and its driver"
            " (`nvidia-smi` shows the driver).",
        )
    if device.index is not None:
        torch.cuda.set_device(device)
    major, minor = torch.cuda.get_device_capability(device)
    kernels = re.findall(r"sm_([0-9]+)", " ".join(torch.cuda.get_arch_list()))
    if 10 * major + minor < min(map(int, kernels), default=0):
        raise DeviceError(
            f"PyTorch {torch.__version__} has no kernels for {device_name(device)}: it is of"
            f" generation {major}.{minor}, older than {' '.join(kernels)}",
            remedy="Use --device cpu, or install PyTorch for an older CUDA (https://pytorch.org).",
        )
    return device


def device_name(device: torch.device) -> str:
    """Return the name of the GPU, or `cpu`."""
    import torch

    return torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"


def cpu_has_bf16() -> bool:
    """Return whether the CPU has instructions that multiply bfloat16."""
    import torch

    capabilities = torch.cpu.get_capabilities()
    return any(capabilities.get(name, False) for name in CPU_WITH_BF16)


def now() -> str:
    """Return the time in UTC as files contain it, in ISO format to the second."""
    return datetime.now(UTC).isoformat(timespec="seconds")


class Stopwatch:
    """Measures the seconds since its creation, and the seconds spent in named phases."""

    def __init__(
        self, device: torch.device | None = None, seconds: dict[str, float] | None = None
    ) -> None:
        """Start.

        Args:
            device: Device of the measured work. If it is a CUDA device, each phase ends with
                waiting for it, so that work queued in a phase counts in this phase.
            seconds: Seconds of each phase so far, to which more are added.
        """
        self._device = device
        self._started = time.perf_counter()
        self.seconds: dict[str, float] = defaultdict(float) if seconds is None else seconds
        """Seconds of each phase."""

    @property
    def total(self) -> float:
        """Seconds since the start."""
        return time.perf_counter() - self._started

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Add the seconds of the block to the phase `name`, even if the block raises an error."""
        started = time.perf_counter()
        try:
            yield
        finally:
            self.add(name, started)

    def add(self, name: str, started: float, *, waits: bool = True) -> None:
        """Add the seconds since `started`; `waits`: once the device has done what is queued."""
        if waits and self._device is not None and self._device.type == "cuda":
            import torch  # not above, because reading and decoding images need no PyTorch

            torch.cuda.synchronize(self._device)
        self.seconds[name] += time.perf_counter() - started

"""CPUs and memory that this process may use, and the signs of a shortage.

A container shows the processors and the memory of its host. Its own limits are in the files of its
control groups (cgroups): the group of the process and every group above, of which the tightest
limit holds. joblib reads the files of the topmost group alone; psutil, which knows the free memory
of the host, reads none.

Source: the Linux kernel's documentation of cgroup-v2, cgroup-v1/memory, sched-bwc.
"""

from __future__ import annotations

import errno
import math
import os
import re
from collections.abc import Iterator
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
"""Words of PyTorch, CUDA, the image libraries, Python and the loader of libraries when memory or a
thread is refused."""
_SHORTAGE_TYPES = {"MemoryError", "OutOfMemoryError"}
"""By name: the libraries that have the latter are not loaded for it."""
_OF_RUST = {"PanicException", "PolarsError", "SafetensorError"}
_NUMBER = re.compile(r"\(os error (\d+)\)|\berrno = (\d+)")
"""How Rust and HDF5 write the number of an error of the system."""


def cpu_count(root: Path = _ROOT) -> int:
    """Return how many CPUs this process may keep busy: at least 1.

    A quota is rounded up: of 1.5 CPUs the second is worth a thread.

    Args:
        root: Folder that holds `proc` and `sys`.
    """
    quotas = [math.ceil(share) for group in _groups("cpu", root) for share in _cpu_quota(group)]
    return max(1, min([visible_cpus(), *quotas]))


def visible_cpus() -> int:
    """Return the number of CPUs that this process may run on, as most libraries count them.

    A cpuset is counted, a quota of CPU time is not.
    """
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def free_memory(device: torch.device | None = None, *, root: Path = _ROOT) -> int:
    """Return the bytes of memory that this process may still take.

    On the host, file buffers that the kernel would give back count as free; on a CUDA device,
    memory that PyTorch holds for reuse.

    Args:
        device: The device; the host for None and for the CPU.
        root: Folder that holds `proc` and `sys`.
    """
    if device is not None and device.type == "cuda":
        import torch  # like psutil not before: the command line counts CPUs before it loads either

        free, _ = torch.cuda.mem_get_info(device)
        return free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    import psutil

    available = int(psutil.virtual_memory().available)
    return min([available, *(n for group in _groups("memory", root) for n in _memory_left(group))])


def out_of_memory(error: BaseException) -> bool:
    """Return whether an error reports a shortage of memory.

    The words of a library or the system count. The number of an OSError is exact, so its words do
    not count, and other errors (`ValueError`) may repeat words of the data.
    """
    if _types(error) & _SHORTAGE_TYPES:
        return True
    if number := error_number(error):
        return number == errno.ENOMEM
    spoken = isinstance(error, RuntimeError | OSError | ImportError)
    return spoken and _SHORTAGE.search(str(error)) is not None


def error_number(error: BaseException) -> int:
    """Return the system's number (`errno`) of an error, 0 if it has none.

    Polars, safetensors and HDF5 have it in their message alone.
    """
    if isinstance(error, OSError) and error.errno is not None:
        return error.errno
    if not (isinstance(error, OSError) or _types(error) & _OF_RUST):
        return 0
    found = _NUMBER.search(str(error))
    return int(found[1] or found[2]) if found else 0


def _types(error: BaseException) -> set[str]:
    return {base.__name__ for base in type(error).__mro__}


def _groups(controller: str, root: Path) -> Iterator[Path]:
    """Yield the folders of the cgroups of this process, from its own to the topmost visible.

    Folders may be missing: a container that shares the names of its host sees the path of its
    group there, and the group itself as the topmost one.
    """
    top = root / "sys/fs/cgroup"
    for line in _read(root / "proc/self/cgroup").splitlines():
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if not controllers:  # version 2: one tree for all
            mounts = [top]
        elif controller in controllers.split(","):  # mounted as `cpu,cpuacct`, `cpu` a link
            mounts = [top / controllers, top / controller]
        else:
            continue
        own = PurePosixPath(path.lstrip("/"))
        yield from (mount / group for mount in mounts for group in (own, *own.parents))


def _cpu_quota(group: Path) -> list[float]:
    """Return the CPUs that a group may use; nothing if it has no limit."""
    words = _read(group / "cpu.max").split()
    if not words:
        words = [_read(group / f"cpu.cfs_{name}_us") for name in ("quota", "period")]
    try:
        quota, period = map(int, words)
    except ValueError:  # no such file, or `max 100000`
        return []
    return [quota / period] if quota > 0 and period > 0 else []


def _memory_left(group: Path) -> list[int]:
    """Return the bytes that a group has left; nothing if it has no limit."""
    for limit, used, buffers in (
        ("memory.max", "memory.current", "inactive_file"),
        ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
    ):
        try:
            left = int(_read(group / limit)) - int(_read(group / used))
        except ValueError:  # no such file, or `max`
            continue
        found = re.search(rf"^{buffers} (\d+)$", _read(group / "memory.stat"), re.MULTILINE)
        return [max(0, left + (int(found[1]) if found else 0))]
    return []


def _read(path: Path) -> str:
    """Return the text of a file; nothing if it cannot be read."""
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


CPU_WITH_BF16 = ("avx512_bf16", "amx_bf16", "bf16")
"""Names that PyTorch has for the instructions, of x86 and of Arm."""


def choose_device(name: str) -> torch.device:
    """Return the device called `name`; `auto` is CUDA if there is a device, else the CPU.

    Raises:
        DeviceError: If CUDA is asked for and there is no CUDA device.
    """
    import torch

    available = torch.cuda.is_available()
    if name == "auto":
        return torch.device("cuda" if available else "cpu")
    if name.startswith("cuda") and not available:
        raise DeviceError(
            f"--device {name} was asked for, but PyTorch finds no CUDA device",
            remedy="Use --device cpu, or install a CUDA build of PyTorch and its driver"
            " (`nvidia-smi` shows the driver).",
        )
    return torch.device(name)


def device_name(device: torch.device) -> str:
    """Return the name of the GPU, or `cpu`."""
    import torch

    return torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"


def cpu_has_bf16() -> bool:
    """Return whether the CPU multiplies bfloat16."""
    import torch

    capabilities = torch.cpu.get_capabilities()
    return any(capabilities.get(name, False) for name in CPU_WITH_BF16)

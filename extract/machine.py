"""How many CPUs and how much memory this process may use, and how a shortage shows.

A container shows the processors and the memory of its host. What it allows is written in the
files of its control groups (cgroups): those of the process and of every group above, of which
the tightest limit holds. joblib reads the files of the topmost group alone, psutil none.

Source: the Linux kernel's documentation of cgroup-v2, cgroup-v1/memory, sched-bwc.
"""

from __future__ import annotations

import errno
import math
import os
import re
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

_ROOT = Path("/")
_SHORTAGE = re.compile(
    r"ca(n't|nnot) allocate|(out of|insufficient|not enough) memory|bad_alloc|start new thread",
    re.IGNORECASE,
)
"""What PyTorch, the image libraries and Python say where the memory, or a thread, is refused."""


def cpu_count(root: Path = _ROOT) -> int:
    """Return how many CPUs this process may keep busy: at least 1.

    A quota is rounded up: of 1.5 CPUs the second is worth a thread.

    Args:
        root: Folder that holds `proc` and `sys`.
    """
    quotas = [math.ceil(share) for group in _groups("cpu", root) for share in _cpu_quota(group)]
    return max(1, min([visible_cpus(), *quotas]))


def visible_cpus() -> int:
    """Return how many CPUs this process may run on: what most libraries count.

    A cpuset is counted, a quota of CPU time is not.
    """
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def free_memory(root: Path = _ROOT) -> int:
    """Return the bytes of memory that this process may still take.

    File buffers that the kernel would give back count as free. Where the system does not say
    what is free, half of its memory is returned.

    Args:
        root: Folder that holds `proc` and `sys`.
    """
    found = re.search(r"^MemAvailable:\s*(\d+) kB$", _read(root / "proc/meminfo"), re.MULTILINE)
    if found:
        available = 1024 * int(found[1])
    else:
        available = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2
    return min([available, *(n for group in _groups("memory", root) for n in _memory_left(group))])


def out_of_memory(error: BaseException) -> bool:
    """Say whether an error tells of a shortage of memory."""
    short = isinstance(error, MemoryError) or (
        isinstance(error, OSError) and error.errno == errno.ENOMEM
    )
    return short or _SHORTAGE.search(str(error)) is not None


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
    """Return the CPUs that a group may use; nothing where it has no limit."""
    words = _read(group / "cpu.max").split()
    if not words:
        words = [_read(group / f"cpu.cfs_{name}_us") for name in ("quota", "period")]
    try:
        quota, period = map(int, words)
    except ValueError:  # no such file, or `max 100000`
        return []
    return [quota / period] if quota > 0 and period > 0 else []


def _memory_left(group: Path) -> list[int]:
    """Return the bytes that a group has left; nothing where it has no limit."""
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
    """Return the text of a file; nothing where it cannot be read."""
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""

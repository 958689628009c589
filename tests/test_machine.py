import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from clinit.errors import DeviceError
from clinit.machine import choose_device, cpu_count, free_memory

GB = 2**30
Write = Callable[[dict[str, str]], Path]


@pytest.fixture(autouse=True)
def _eight_cpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(8)), raising=False)


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Write:
    """Write files below a folder that stands for /, where 16 GB are available."""
    host = SimpleNamespace(available=16 * GB, free=GB, total=64 * GB)
    monkeypatch.setattr("psutil.virtual_memory", lambda: host)

    def make(files: dict[str, str]) -> Path:
        for name, text in files.items():
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        return tmp_path

    return make


def v2(group: str, **files: str) -> dict[str, str]:
    """Name files of a group: cpu_max becomes cpu.max."""
    return {f"sys/fs/cgroup{group}/{name.replace('_', '.')}": t for name, t in files.items()}


ROOT_V2 = {"proc/self/cgroup": "0::/\n"}
NESTED_V2 = {"proc/self/cgroup": "0::/user.slice/job\n"}


@pytest.mark.parametrize(
    ("quota", "cpus"),
    [
        *[("200000 100000", 2), ("150000 100000", 2), ("10000 100000", 1), ("50000 10000", 5)],
        *[("900000 100000", 8), ("max 100000", 8), ("", 8), ("many of them", 8), ("100000", 8)],
        *[("0 100000", 8), ("100000 0", 8)],
    ],
)
def test_a_quota_bounds_the_cpus_and_is_rounded_up(write: Write, quota: str, cpus: int) -> None:
    assert cpu_count(write(ROOT_V2 | v2("", cpu_max=quota))) == cpus


@pytest.mark.parametrize("text", ["", "garbage\n", "::\n", "0::/\n\0\n:::::\n", "1:cpu\n"])
def test_nothing_that_can_be_read_is_no_limit(write: Write, text: str) -> None:
    root = write({"proc/self/cgroup": text})
    assert (cpu_count(root), free_memory(root=root)) == (8, 16 * GB)


@pytest.mark.parametrize(
    ("limit", "used", "stat", "left"),
    [
        (4 * GB, 3 * GB, f"file 7\ninactive_file {GB}\nactive_file 9\n", 2 * GB),
        (4 * GB, 3 * GB, "inactive_file much\n", GB),
        (GB, 2 * GB, "inactive_file 0\n", 0),
        (64 * GB, GB, "", 16 * GB),
        ("max", GB, "", 16 * GB),
        (4 * GB, "", "", 16 * GB),
    ],
)
def test_a_limit_bounds_the_free_memory(
    write: Write, limit: int | str, used: int | str, stat: str, left: int
) -> None:
    files = v2("", memory_max=f"{limit}\n", memory_current=f"{used}\n", memory_stat=stat)
    assert free_memory(root=write(ROOT_V2 | files)) == left


def test_the_group_with_the_least_memory_left_holds(write: Write) -> None:
    def group(name: str, limit: int, used: int) -> dict[str, str]:
        return v2(name, memory_max=str(limit), memory_current=str(used), memory_stat="")

    root = write(NESTED_V2 | group("/user.slice/job", 4 * GB, GB) | group("/user.slice", 9 * GB, 0))
    assert free_memory(root=root) == 3 * GB
    write(group("/user.slice", 9 * GB, 7 * GB))
    assert free_memory(root=root) == 2 * GB


def test_on_a_cuda_device_what_torch_holds_for_reuse_is_free(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (100, 1000))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device: 50)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda device: 20)
    assert free_memory(torch.device("cuda")) == 130


@pytest.mark.parametrize(
    ("name", "gpus", "capability", "expected"),
    [
        ("auto", 0, (9, 0), "cpu"),
        ("auto", 2, (9, 0), "cuda"),
        ("cuda:1", 2, (9, 0), "cuda:1"),
        ("cpu", 2, (3, 5), "cpu"),
        ("cuda", 0, (9, 0), "--device cuda needs a CUDA device, but PyTorch finds none"),
        ("cuda:2", 2, (9, 0), "--device cuda:2 needs a CUDA device, but PyTorch finds 2"),
        ("gpu", 2, (9, 0), "--device gpu is no device"),
        (
            "cuda",
            1,
            (7, 0),
            "has no kernels for Old GPU: it is of generation 7.0, older than 75 90",
        ),
    ],
)
def test_a_device_is_chosen_or_refused_before_its_first_kernel(
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    gpus: int,
    capability: tuple[int, int],
    expected: str,
) -> None:
    current: list[object] = []
    for function, answer in {
        **{"is_available": lambda: gpus > 0, "device_count": lambda: gpus},
        **{"get_device_capability": lambda device: capability, "set_device": current.append},
        **{"get_arch_list": lambda: ["sm_75", "sm_90"]},
        **{"get_device_name": lambda device: "Old GPU"},
    }.items():
        monkeypatch.setattr(torch.cuda, function, answer)
    if " " in expected:
        with pytest.raises(DeviceError, match=expected):
            choose_device(name)
    else:
        assert str(choose_device(name)) == expected
        assert list(map(str, current)) == ([expected] if ":" in expected else [])

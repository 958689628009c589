"""Every finding is provoked once, and a healthy machine has none."""

import importlib
import importlib.util
import re
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from clinit.cli.main import app
from clinit.extract import doctor
from clinit.extract.doctor import Finding

GIGABYTE = 2**30


def only(findings: Iterable[Finding], state: str) -> str:
    """Return what the one finding of a state says, and its remedy, which all but "ok" have."""
    (found,) = [each for each in findings if each.state == state]
    assert bool(found.remedy) == (state != "ok")
    return f"{found.told}\n{found.remedy}"


def test_packages_that_are_missing_or_old_are_faults() -> None:
    asked = ["numpy>=1.26", "torch>=99.1", "no-such-package>=2"]
    extras = ['no-such-extra>=1; extra == "ray"', 'polars>=0.1; extra == "x"']
    _, torch_, absent, there = doctor.check_versions([*asked, *extras])
    assert (torch_.state, torch_.remedy) == ("fault", "pip install 'torch>=99.1'")
    assert absent.told == "no-such-package is not installed"
    assert f"numpy {np.__version__}, polars" in there.told


@pytest.mark.parametrize("built_for", [None, "13.0"])
def test_a_driver_without_a_device_is_a_warning(
    monkeypatch: pytest.MonkeyPatch, built_for: str | None
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.version, "cuda", built_for)
    monkeypatch.setattr(shutil, "which", lambda name: "/usr/bin/nvidia-smi")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    remedy = "pip" if built_for is None else "--gpus all"
    assert re.search(f"finds no device(.|\n)*{remedy}", only(doctor.check_cuda(), "warning"))
    monkeypatch.setattr(shutil, "which", lambda name: None)
    monkeypatch.setattr(doctor, "_DRIVER", Path("/nowhere"))
    assert "no GPU: everything runs on the CPU" in only(doctor.check_cuda(), "ok")


def no_headers(function: Any) -> Any:
    raise RuntimeError("fatal error: Python.h: No such file or directory\n#include")


@pytest.mark.parametrize(
    ("free", "compiles", "expected"),
    [
        (40, lambda function: function, [("ok", "it works"), ("ok", "are compiled")]),
        (40, no_headers, [("ok", "it works"), ("warning", "are not compiled for the GPU: fatal")]),
        (1, None, [("warning", "1.0 of 80.0 GB free: in use by other processes")]),
    ],
)
def test_a_device_computes_and_compiles_unless_its_memory_is_taken(
    monkeypatch: pytest.MonkeyPatch, free: int, compiles: Any, expected: list[tuple[str, str]]
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (free * GIGABYTE, 80 * GIGABYTE))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "H100")
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    importlib.import_module("clinit.extract.network.compiled")  # before `torch.device` is replaced
    with monkeypatch.context() as patch:
        patch.setattr(torch, "device", lambda *_: "cpu")
        patch.setattr(torch, "compile", compiles)
        found = list(doctor.check_cuda())
    for one, (state, told) in zip(found, expected, strict=True):
        assert told in only([one], state)


class FakeCupy:
    """NumPy under the name of CuPy, whose compiler may be missing."""

    linalg, eye, ones = np.linalg, staticmethod(np.eye), staticmethod(np.ones)

    def __init__(self, *, compiles: bool = True) -> None:
        self.compiles = compiles

    def ElementwiseKernel(self, *words: str) -> Callable[..., Any]:  # noqa: N802
        if not self.compiles:
            raise RuntimeError("nvrtc: error: cannot open cuda_fp16.h")
        return lambda x: x + 1


def _broken(name: str) -> Any:
    raise ImportError("libcublas.so.12: cannot open\nmore")


@pytest.mark.parametrize(
    ("cuda", "cupy", "state", "told", "remedy"),
    [
        ("13.2", None, "warning", "solved on the CPU", 'pip install "clinit[cuda13]"'),
        (None, lambda _: FakeCupy(), "ok", "no GPU", ""),
        ("12.8", lambda _: FakeCupy(), "ok", "compiles a kernel", ""),
        ("12.8", lambda _: FakeCupy(compiles=False), "fault", "cuda_fp16.h", "clinit[cuda12]"),
        ("12.8", _broken, "fault", "cannot be used: libcublas.so.12: cannot open", "cuda12"),
    ],
)
def test_cupy_is_asked_for_with_a_gpu_and_tried(
    monkeypatch: pytest.MonkeyPatch, cuda: str | None, cupy: Any, state: str, told: str, remedy: str
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: cupy)
    with monkeypatch.context() as patch:
        patch.setattr(doctor, "importlib", SimpleNamespace(import_module=cupy, util=importlib.util))
        found = only(doctor.check_cupy(cuda), state)
    assert told in found
    assert remedy in found


@pytest.mark.parametrize(("memory", "judged"), [(0.5, "fault"), (2, "warning"), (9, "ok")])
def test_limits_of_cpus_and_memory_are_judged(
    monkeypatch: pytest.MonkeyPatch, memory: float, judged: str
) -> None:
    monkeypatch.setattr(doctor, "cpu_count", lambda: 2)
    monkeypatch.setattr(doctor, "free_memory", lambda: int(memory * GIGABYTE))
    found = {each.subject: each for each in doctor.check_limits()}
    assert "2 of the " in only([found["CPUs"]], "ok")
    assert f"{memory:.1f} GB" in only([found["memory"]], judged)


def test_a_check_that_fails_is_a_fault() -> None:
    def check() -> Iterable[Finding]:
        yield Finding("x", "so far")
        raise OSError("libtorch.so: undefined symbol\nmore")

    found = list(doctor.guarded("CUDA", check))
    assert [each.state for each in found] == ["ok", "fault"]
    assert found[1].told == "the check failed: OSError: libtorch.so: undefined symbol"


def test_the_command_fails_on_faults_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "free_memory", lambda: 2 * GIGABYTE)
    warned = CliRunner().invoke(app, ["doctor"])
    assert warned.exit_code == 0, warned.exception
    for subject in ("Python", "packages", "CUDA", "CuPy", "programs"):
        assert f"\n {subject} " in warned.stdout
    monkeypatch.setattr(doctor, "free_memory", lambda: GIGABYTE // 2)
    failed = CliRunner().invoke(app, ["doctor"])
    assert failed.exit_code == 1
    assert "0.5 GB left for this process" in " ".join(failed.stdout.split())
    assert "memory" in failed.stdout.splitlines()[-1]

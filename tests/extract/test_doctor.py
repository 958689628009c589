"""Every finding is provoked once, and a healthy machine has none."""

from __future__ import annotations

import fcntl
import importlib
import importlib.util
import json
import os
import resource
import shutil
import tempfile
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from clinit.cli.main import app
from clinit.extract import doctor
from clinit.extract.doctor import Finding, PlannedCache, State, check_disk, check_threads

GIGABYTE = 2**30


def only(findings: Iterable[Finding], state: str, told: str, remedy: str = "") -> None:
    """Check that there is one finding of a state, and what it says."""
    (found,) = [each for each in findings if each.state == state]
    assert told in found.told
    assert remedy in found.remedy
    assert bool(found.remedy) == (state != "ok")


def test_packages_that_are_missing_or_old_are_faults(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = ["numpy>=1.26", "torch>=99.1", "no-such-package>=2"]
    extras = ['no-such-extra>=1; extra == "ray"', 'polars>=0.1; extra == "x"']
    monkeypatch.setattr("sys.version_info", (3, 9, 1))
    python, torch_, absent, there = doctor.check_versions([*asked, *extras])
    assert (python.state, python.remedy) == ("fault", "Install Python 3.11.")
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
    told = "built without CUDA" if built_for is None else "(CUDA 13.0) finds no device"
    only(doctor.check_cuda(), "warning", told, "pip" if built_for is None else "--gpus all")
    monkeypatch.setattr(shutil, "which", lambda name: None)
    monkeypatch.setattr(doctor, "_DRIVER", Path("/nowhere"))
    only(doctor.check_cuda(), "ok", "no GPU: everything runs on the CPU")


@pytest.mark.parametrize(
    ("free", "error", "state", "told"),
    [
        (40, 1e-15, "ok", "agrees with the CPU to 1e-15"),
        (1, 1e-15, "warning", "1.0 of 80.0 GB free, CUDA 13.0: others are using it"),
        (40, 0.5, "fault", "a product of matrices is wrong by 0.5"),
        (40, float("nan"), "fault", "a product of matrices is wrong by nan"),
    ],
)
def test_a_device_is_judged_by_its_memory_and_a_product(
    monkeypatch: pytest.MonkeyPatch, free: int, error: float, state: str, told: str
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    memory = (free * GIGABYTE, 80 * GIGABYTE)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: memory)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "H100")
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(doctor, "product_error", lambda device: error)
    only(doctor.check_cuda(), state, told)


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_the_device_here_multiplies(device: str) -> None:
    assert doctor.product_error(device) < 1e-10


class FakeCupy:
    """NumPy under the name of CuPy, with a kernel that may be wrong."""

    linalg = np.linalg
    asarray = asnumpy = staticmethod(np.asarray)

    def __init__(self, wrong: float = 0.0) -> None:
        self.wrong = wrong

    def ElementwiseKernel(self, *words: str) -> Callable[..., Any]:  # noqa: N802
        return lambda x, y: x * y + 1 + self.wrong


def _broken(name: str) -> Any:
    raise ImportError("libcublas.so.12: cannot open\nmore")


@pytest.mark.parametrize(
    ("cuda", "cupy", "state", "told", "remedy"),
    [
        (None, None, "ok", "not installed, and no GPU", ""),
        ("13.2", None, "warning", "solved on the CPU", 'pip install "clinit[cuda13]"'),
        (None, lambda _: FakeCupy(), "ok", "installed, but there is no GPU", ""),
        ("12.8", lambda _: FakeCupy(), "ok", "agree with NumPy to 0e+00", ""),
        ("12.8", lambda _: FakeCupy(wrong=0.5), "fault", "is wrong by", "clinit[cuda12]"),
        ("12.8", _broken, "fault", "cannot be used: libcublas.so.12: cannot open", "cuda12"),
    ],
)
def test_cupy_is_asked_for_with_a_gpu_and_compared_with_numpy(
    monkeypatch: pytest.MonkeyPatch, cuda: str | None, cupy: Any, state: str, told: str, remedy: str
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: cupy)
    with monkeypatch.context() as patch:
        patch.setattr(doctor, "importlib", SimpleNamespace(import_module=cupy, util=importlib.util))
        only(doctor.check_cupy(cuda), state, told, remedy)


def test_a_codec_that_fails_or_gives_other_pixels_is_a_fault(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    only(doctor.check_codecs(), "ok", "JPEG, PNG, WebP are decoded as they were written")

    def error_of(format: str) -> float:
        if format == "WebP":
            raise ImportError("libwebp.so: cannot open")
        return 40.0 if format == "JPEG" else 0.0

    monkeypatch.setattr(doctor, "decoding_error", error_of)
    jpeg, webp, png = doctor.check_codecs()
    assert "JPEG is decoded to other pixels: 40.0 of 255" in jpeg.told
    assert webp.told == "WebP cannot be decoded: libwebp.so: cannot open"
    assert png.told == "PNG are decoded as they were written"


def test_a_folder_that_cannot_be_looked_at_is_not_the_fault_of_clinit(tmp_path: Path) -> None:
    place = tmp_path / ("x" * 300)
    only(check_disk(place, None), "fault", "File name too long", "another folder with `--out`")
    only(doctor.check_storage(place), "fault", "File name too long", "that you can write to")


def test_a_planned_cache_is_compared_with_the_free_space(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def free(size: int) -> None:
        monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=size))

    plan = PlannedCache(rows=1_000_000, dim=500)
    assert plan.nbytes == 1.05 * 1_016_000_000
    free(10**9)
    only(check_disk(tmp_path / "not" / "there", plan), "fault", "1.0 GB free at", "Free 0.1 GB")
    free(2 * 10**9)
    only(check_disk(tmp_path, plan), "ok", "a cache of 1,000,000 x 500 takes 1.1 GB")
    free(10**8)
    only(check_disk(tmp_path, None), "warning", "0.1 GB free", "Free space")


def test_storage_is_written_locked_and_left_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    only(doctor.check_storage(tmp_path / "new"), "ok", f"{tmp_path} can be written and locked")

    def fail(number: int, *_: object, **__: object) -> None:
        raise OSError(number, os.strerror(number))

    with monkeypatch.context() as patched:
        patched.setattr(fcntl, "flock", partial(fail, 37))
        only(doctor.check_storage(tmp_path), "warning", "cannot lock files", "one command on a")
    with monkeypatch.context() as patched:
        patched.setattr(tempfile, "TemporaryDirectory", partial(fail, 28))
        only(doctor.check_storage(tmp_path), "fault", "No space left on device", "--out")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("files", "state", "told"),
    [(20, "fault", "at most 20"), (256, "warning", "at most 256"), (-1, "ok", "unlimited")],
)
@pytest.mark.parametrize(("memory", "judged"), [(0.5, "fault"), (2, "warning"), (9, "ok")])
def test_limits_of_files_cpus_and_memory_are_told(
    monkeypatch: pytest.MonkeyPatch, files: int, state: str, told: str, memory: float, judged: str
) -> None:
    values = {resource.RLIMIT_NOFILE: files, resource.RLIMIT_FSIZE: 10**9}
    monkeypatch.setattr(resource, "getrlimit", lambda which: (values[which], 0))
    monkeypatch.setattr(doctor, "cpu_count", lambda: 2)
    monkeypatch.setattr(doctor, "visible_cpus", lambda: 64)
    monkeypatch.setattr(doctor, "free_memory", lambda: int(memory * GIGABYTE))
    found = {each.subject: each for each in doctor.check_limits()}
    only([found["open files"]], state, told, "" if state == "ok" else "ulimit -n 4096")
    only([found["file size"]], "warning", "no file may be larger than 1,000 MB", "ulimit -f")
    only([found["CPUs"]], "ok", "2 of the 64 visible ones")
    assert (found["memory"].state, bool(found["memory"].remedy)) == (judged, judged != "ok")


@pytest.mark.parametrize(
    ("environment", "threads", "told", "remedy"),
    [
        ({"OMP_NUM_THREADS": "16"}, 16, "OMP_NUM_THREADS=16 on 4 CPUs", "export OMP_NUM_THREADS=4"),
        ({"MKL_NUM_THREADS": "all"}, 4, "MKL_NUM_THREADS is 'all', which is", "unset MKL_NUM"),
        ({"OMP_NUM_THREADS": "0"}, 4, "OMP_NUM_THREADS is '0'", "unset OMP_NUM_THREADS"),
        ({"OMP_WAIT_POLICY": "ACTIVE"}, 4, "idle threads keep CPUs busy", "unset OMP_WAIT_POLICY"),
        ({}, 64, "64 of PyTorch on 4 CPUs", "export OMP_NUM_THREADS=4"),
        ({"OMP_NUM_THREADS": "4,2", "HOME": "/"}, 4, "on 4 CPUs; OMP_NUM_THREADS=4,2", ""),
    ],
)
def test_more_threads_than_cpus_are_a_warning(
    environment: dict[str, str], threads: int, told: str, remedy: str
) -> None:
    only(check_threads(environment, threads, 4), "warning" if remedy else "ok", told, remedy)


@pytest.mark.parametrize("encoding", ["ascii", "no-such", None])
def test_a_terminal_that_lacks_characters_is_a_warning(encoding: str | None) -> None:
    remedy = "export PYTHONIOENCODING=utf-8"
    only(doctor.check_terminal(encoding, 100), "warning", "lose characters", remedy)
    only(doctor.check_terminal("UTF-8", 40), "warning", "tables are cut", "COLUMNS=100")
    only(doctor.check_terminal("utf8", 80), "ok", "utf8, 80 columns")


def test_a_check_that_fails_is_a_fault() -> None:
    def check() -> Iterable[Finding]:
        yield Finding("x", State.ok, "so far")
        raise OSError("libtorch.so: undefined symbol\nmore")

    found = list(doctor.guarded("CUDA", check))
    assert [each.state for each in found] == ["ok", "fault"]
    assert found[1].told == "cannot be looked at: OSError: libtorch.so: undefined symbol"


def test_the_command_fails_on_faults_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", str(os.cpu_count() or 1))
    words = ["doctor", "--out", str(tmp_path)]
    warned = CliRunner().invoke(app, [*words, "--json"], env={"OMP_WAIT_POLICY": "active"})
    assert warned.exit_code == 0, warned.exception
    found = json.loads(warned.stdout)
    subjects = ["Python", "packages", "CUDA", "CuPy", "images", "disk", "storage", "open files"]
    assert [each["subject"] for each in found if each["subject"] in subjects] == subjects
    assert {"subject", "state", "told", "remedy"} == set(found[0])
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=10**9))
    monkeypatch.setenv("COLUMNS", "80")
    failed = CliRunner().invoke(app, [*words, "--dataset", "places365", "--dim", "2048"])
    assert failed.exit_code == 1
    assert "a cache of 1,839,960 x 2,048 takes 7.9 GB" in " ".join(failed.stdout.split())
    assert "1 fault" in failed.stdout.splitlines()[-1]


@pytest.mark.parametrize(
    "words", [["--dim", "7"], ["--dtype", "float16"], ["--dataset", "places365", "--rows", "3"]]
)
def test_options_of_a_planned_cache_need_one(words: list[str]) -> None:
    assert CliRunner().invoke(app, ["doctor", *words]).exit_code == 2

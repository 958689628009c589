import errno
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import polars as pl
import pytest
import torch

from clinit.cli.main import fail

LESS = "Free some, or give smaller --batch-size, --bank-size or --workers"


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Return what an error of `clinit extract` is told as; its exit code is 1."""

    def tell(error: BaseException, *command: str) -> str:
        monkeypatch.setattr("sys.argv", ["clinit", *(command or ["extract"])])
        assert fail(error) == 1
        shown = capsys.readouterr()
        assert shown.out == ""
        return shown.err

    return tell


def failure_of(allocate: Callable[[], object]) -> BaseException:
    with pytest.raises((MemoryError, RuntimeError)) as caught:
        allocate()
    return caught.value


@pytest.mark.parametrize(
    ("error", "found"),
    [
        (MemoryError(), "out of memory\n"),
        (
            failure_of(lambda: np.empty(2**62, np.int8)),
            "out of memory: Unable to allocate 4.00 EiB",
        ),
        (failure_of(lambda: torch.empty(2**60)), "DefaultCPUAllocator: can't allocate memory"),
        (torch.OutOfMemoryError("CUDA out of memory. Tried\n2 GiB"), "CUDA out of memory. Tried\n"),
        (RuntimeError("std::bad_alloc"), "out of memory: std::bad_alloc\n"),
        (RuntimeError("can't start new thread"), "out of memory: can't start new thread\n"),
        (OSError(errno.ENOMEM, "Cannot allocate memory"), "Cannot allocate memory\n"),
        (ImportError("libtorch_cpu.so: failed to map segment from shared object"), "failed to map"),
        (
            pl.exceptions.ComputeError("parquet: (os error 12)"),
            "out of memory: parquet: (os error 12)\n",
        ),
        (RuntimeError("CUBLAS_STATUS_ALLOC_FAILED when calling"), "CUBLAS_STATUS_ALLOC_FAILED"),
        (RuntimeError("Insufficient memory (case 4)"), "memory: Insufficient memory (case 4)\n"),
    ],
)
def test_a_shortage_of_memory_is_a_sentence_with_the_options_that_need_less(
    told: Callable[..., str], error: BaseException, found: str
) -> None:
    said = told(error)
    assert said.startswith("Error: out of memory")
    assert found in said
    assert f"\n{LESS}" in said


@pytest.mark.parametrize(
    "name", ["disk (os error 28)", "errno = 28", "(os error 12)", "out of memory", "bad_alloc"]
)
def test_words_of_the_data_are_no_shortage(told: Callable[..., str], name: str) -> None:
    said = told(ValueError(f'class "{name}" is unknown'))
    assert said == f'ValueError: class "{name}" is unknown\n'
    missing = FileNotFoundError(errno.ENOENT, "No such file or directory", name)
    assert told(missing) == f"Error: [Errno 2] No such file or directory: '{name}'\n"


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (OSError(errno.ENOSPC, "No space left on device", "o"), "cannot write o: No space left"),
        (OSError(errno.EDQUOT, "Disk quota exceeded", "o"), "cannot write o: Disk quota exceeded"),
        (
            pl.exceptions.ComputeError("parquet: IO error (os error 28)"),
            "cannot write: No space left on device",
        ),
        (
            OSError("HDF5: errno = 28, error message = 'No'"),
            "cannot write: No space left on device",
        ),
    ],
)
def test_a_full_disk_is_a_sentence(
    told: Callable[..., str], error: Exception, expected: str
) -> None:
    said = told(error)
    assert said.startswith(f"Error: {expected}")
    assert said.endswith(
        "\nFree space or choose another folder, then run the same command again.\n"
    )


LIMITED = """
import resource, sys
from pathlib import Path
import polars, scipy
from clinit.cli.main import main

held = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (held + 2**26, held + 2**26))
main()
"""
"""Less is left than PyTorch takes, whatever else its build and this machine have mapped."""


def test_a_limit_of_memory_ends_a_command_in_a_sentence(tiny_run: Path) -> None:
    words = [sys.executable, "-c", LIMITED, "diagnose", str(tiny_run.parent / "caches" / "base")]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.startswith("Error: out of memory: ")
    assert f"\n{LESS}" in done.stderr

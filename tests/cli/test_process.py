import os
import platform
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from clinit.cli.frame.process import BLAS_TIMEOUT, SPIN_COUNT, TABLE_THREADS, set_thread_defaults

OTHERS = {"OPENBLAS_THREAD_TIMEOUT": str(BLAS_TIMEOUT), "POLARS_MAX_THREADS": str(TABLE_THREADS)}
OURS = ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY", "OMP_NUM_THREADS", *OTHERS)


def run(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run Python in the environment of the tests, without what this module is about."""
    rest = {
        name: value
        for name, value in os.environ.items()
        if name not in OURS and not name.startswith(("MALLOC_", "GLIBC_"))
    }
    command = [sys.executable, "-c", code]
    return subprocess.run(
        command, capture_output=True, text=True, check=True, env=rest | environment
    )


WAITS = {"GOMP_SPINCOUNT": str(SPIN_COUNT)}
OWN = {"GOMP_SPINCOUNT": "5", "OPENBLAS_THREAD_TIMEOUT": "20", "POLARS_MAX_THREADS": "3"}


@pytest.mark.parametrize(
    ("allowed", "own", "added"),
    [
        (4, {"HOME": "/root"}, {**WAITS, **OTHERS}),
        (4, OWN, {}),
        (4, {"OMP_WAIT_POLICY": "ACTIVE"}, OTHERS),
        (2, OWN, {"OMP_NUM_THREADS": "2"}),
        (2, {**OWN, "OMP_NUM_THREADS": "7"}, {}),
    ],
)
def test_defaults_are_set_and_what_the_user_has_set_wins(
    monkeypatch: pytest.MonkeyPatch, allowed: int, own: dict[str, str], added: dict[str, str]
) -> None:
    monkeypatch.setattr("clinit.cli.frame.process.cpu_count", lambda: allowed)
    monkeypatch.setattr("clinit.cli.frame.process.visible_cpus", lambda: 4)
    environment = dict(own)
    set_thread_defaults(environment)
    assert environment == {**own, **added}


COMMAND = """
import os, sys
from clinit.cli import main as line
def look():
    heavy = {"torch", "scipy", "sklearn", "polars"} & set(sys.modules)
    import torch
    import polars
    print(os.environ.get("GOMP_SPINCOUNT"), sorted(heavy), polars.thread_pool_size())
line.app.command("look")(look)
sys.argv = ["clinit", "look"]
line.main()
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("own", "set_to", "read"),
    [
        ({}, str(SPIN_COUNT), str(SPIN_COUNT)),
        ({"GOMP_SPINCOUNT": "7"}, "7", "7"),
        ({"OMP_WAIT_POLICY": "PASSIVE"}, "None", "0"),
    ],
)
def test_the_environment_is_set_before_torch_is_loaded_and_its_openmp_has_read_it(
    own: dict[str, str], set_to: str, read: str
) -> None:
    done = run(COMMAND, OMP_DISPLAY_ENV="VERBOSE", **own)
    assert done.stdout == f"{set_to} [] {TABLE_THREADS}\n"
    told = set(re.findall(r"GOMP_SPINCOUNT = '(\d+)'", done.stderr))
    assert told <= {read}  # nothing where PyTorch brings another OpenMP
    assert told or not list((Path(torch.__file__).parent / "lib").glob("libgomp*"))


ALLOCATOR = """
import os, resource
from clinit.cli.frame.process import keep_freed_memory
print(keep_freed_memory(os.environ))
import numpy as np
from threading import Thread
def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt
def allocate():
    for turn in range(5):
        np.ones(13_000_000)  # more than the heap of a single thread holds
        before = before if turn else faults()
    print(faults() - before)
allocate()
thread = Thread(target=allocate)
thread.start()
thread.join()
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the allocator is not that of glibc")
@pytest.mark.parametrize(
    ("own", "kept", "few"),
    [({}, "True", True), ({"MALLOC_MMAP_THRESHOLD_": "65536"}, "False", False)],
)
def test_a_freed_array_is_the_next_one_without_a_page_from_the_system(
    own: dict[str, str], kept: str, few: bool
) -> None:
    said, *faults = run(ALLOCATOR, **own).stdout.split()
    assert said == kept
    assert [int(count) < 40 for count in faults] == [few, few]

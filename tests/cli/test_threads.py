import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from clinit.cli.frame.threads import BLAS_TIMEOUT, SPIN_COUNT, TABLE_THREADS, set_thread_defaults

OTHERS = {
    "OPENBLAS_THREAD_TIMEOUT": str(BLAS_TIMEOUT),
    "POLARS_MAX_THREADS": str(TABLE_THREADS),
}
OURS = ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY", "OMP_NUM_THREADS", *OTHERS)


def run(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run Python in the environment of the tests, without what this module is about."""
    rest = {name: value for name, value in os.environ.items() if name not in OURS}
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
    monkeypatch.setattr("clinit.cli.frame.threads.cpu_count", lambda: allowed)
    monkeypatch.setattr("clinit.cli.frame.threads.visible_cpus", lambda: 4)
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

"""The benchmark of waiting threads, at the smallest size."""

import argparse
import importlib
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "threads.py"


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(SCRIPT.parent))
    return importlib.import_module("threads")


def test_a_run_counts_the_cpu_seconds_of_the_processes_that_it_started(script: Any) -> None:
    burn = "import time; end = time.process_time() + 0.3\nwhile time.process_time() < end: pass"
    code = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {burn!r}])"
    run = script.measure([sys.executable, "-c", code], {}, limit_s=60)
    assert not run.stopped
    assert 0.3 < run.cpu_s < 10
    assert run.wall_s > 0.3


def test_a_run_is_stopped_at_the_limit(script: Any) -> None:
    run = script.measure([sys.executable, "-c", "while True: pass"], {}, limit_s=0.5)
    assert run.stopped
    assert 0.5 <= run.wall_s < 30


def test_a_command_that_fails_ends_the_benchmark_with_its_message(script: Any) -> None:
    with pytest.raises(SystemExit, match=r"(?s)failed:\n.*ValueError: no such thing"):
        script.measure([sys.executable, "-c", "raise ValueError('no such thing')"], {}, limit_s=60)


def test_a_setting_replaces_what_the_user_has_set(
    script: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GOMP_SPINCOUNT", "3")
    monkeypatch.setenv("OMP_WAIT_POLICY", "ACTIVE")
    look = "import os, sys; sys.exit(' '.join(os.environ.get(n, '-') for n in sys.argv[1:]))"
    command = [sys.executable, "-c", look, "GOMP_SPINCOUNT", "OMP_WAIT_POLICY"]
    for setting, told in (("passive", "- PASSIVE"), ("spin-100", "100 -"), ("default", "300000 -")):
        with pytest.raises(SystemExit, match=f"failed:\n{told}\n"):
            script.measure(command, script.SETTINGS[setting], limit_s=60)


def test_loops_run_until_they_are_no_longer_needed(script: Any) -> None:
    with script.busy(2) as loops:
        assert [loop.poll() for loop in loops] == [None, None]
    assert [loop.returncode for loop in loops] == [-signal.SIGKILL] * 2


def test_loops_end_with_a_script_that_is_killed(script: Any) -> None:
    code = (
        f"import os, sys; sys.path.insert(0, {str(SCRIPT.parent)!r}); import threads\n"
        "with threads.busy(1) as loops:\n"
        "    print(loops[0].pid, flush=True); os.kill(os.getpid(), 9)"
    )
    command = [sys.executable, "-c", code]
    killed = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=60)
    assert killed.returncode == -signal.SIGKILL
    loop, deadline = int(killed.stdout), time.monotonic() + 30
    while running := is_running(loop):
        if time.monotonic() > deadline:
            os.kill(loop, signal.SIGKILL)
            break
        time.sleep(0.1)
    assert not running


def is_running(process: int) -> bool:
    try:
        state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


def test_settings_are_compared_by_medians_with_the_first_of_them(script: Any) -> None:
    def runs(*wall_s: float, stopped: bool = False) -> list[Any]:
        return [script.ProcessCost(value, 2 * value, stopped) for value in wall_s]

    found = {
        ("train-head", False, "default"): runs(4.0, 90.0, 3.0),
        ("train-head", True, "default"): runs(20.0, stopped=True),
        ("train-head", False, "passive"): runs(5.0),
        ("train-head", True, "passive"): runs(10.0),
        ("extract", False, "default"): runs(1.0),
        ("extract", True, "default"): runs(1.0),
        ("extract", False, "passive"): runs(1.0, 2.0),
        ("extract", True, "passive"): runs(0.5),
    }
    asked = {"commands": ["train-head", "extract"], "settings": ["default", "passive"]}
    assert script.rows_of(found, argparse.Namespace(**asked)) == [
        ["train-head", "default", "4.0", "8.0", "1.00", "> 20.0", "> 40.0", "1.00"],
        ["train-head", "passive", "5.0", "10.0", "1.25", "10.0", "20.0", "0.50"],
        ["extract", "default", "1.0", "2.0", "1.00", "1.0", "2.0", "1.00"],
        ["extract", "passive", "1.5", "3.0", "1.50", "0.5", "1.0", "0.50"],
        ["geometric mean", "default", "", "", "1.00", "", "", "1.00"],
        ["geometric mean", "passive", "", "", f"{(1.25 * 1.5) ** 0.5:.2f}", "", "", "0.50"],
    ]


@pytest.mark.slow
def test_it_measures_and_writes_a_dated_result(tmp_path: Path) -> None:
    commands = ("train-head",)  # the others take longer, in the same way
    done = subprocess.run(
        [
            *(sys.executable, str(SCRIPT), "--small", "--repeats=1", "--busy=1"),
            *("--commands", *commands, "--settings", "spin-1000", "--out", str(tmp_path)),
        ],
        capture_output=True,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    (path,) = tmp_path.iterdir()
    assert re.fullmatch(r"threads_\d+-core-.*_\d{4}-\d\d-\d\d\.md", path.name)
    text = path.read_text(encoding="utf-8")
    assert "`spin-1000`: GOMP_SPINCOUNT=1000 OPENBLAS_THREAD_TIMEOUT=28." in text
    assert re.search(r"load average \d+\.\d\d before the first run\. torch \d", text)
    cells = [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("| ")]
    rows = {row[0]: [float(value) for value in row[2:]] for row in cells[1:] if row[2]}
    assert tuple(rows) == commands
    assert all(value > 0 for row in rows.values() for value in row)

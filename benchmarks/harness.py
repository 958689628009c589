"""Shared code of the benchmarks: processes that take turns, the clock, tables and dated results.

A contender is a script in its own process, which answers each input line with one line of JSON. The
contender with Avalanche runs in another environment, which uses PyTorch from this one.
"""

from __future__ import annotations

import datetime
import json
import os
import platform
import signal
import subprocess
import sys
import sysconfig
import tempfile
import threading
import time
import venv
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

AVALANCHE = "avalanche-lib==0.6.0"
PEERS = Path(__file__).with_name(".peers")
CONSOLE = Console(width=120)
ANSWERS = os.dup(1)


class Process:
    """A script of this folder that waits for its turns."""

    def __init__(
        self, name: str, python: str, script: str, *arguments: str, threads: int, **own: str
    ) -> None:
        """Start the script; it prints its first answer when it is ready.

        Args:
            name: Name in the error if the script ends early.
            python: Interpreter.
            script: Name of the file.
            arguments: Arguments of the script.
            threads: Number of threads of matrix products.
            own: Additional environment variables.
        """
        self._name = name
        environment = {**os.environ, "OMP_NUM_THREADS": str(threads), "WANDB_MODE": "disabled"}
        self._process = subprocess.Popen(
            [python, str(Path(__file__).with_name(script)), *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment | {"PYTHONWARNINGS": "ignore"} | own,
        )

    def tell(self, line: str) -> dict[str, Any]:
        """Send a line to the script, and return its answer."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{line}\n")
        self._process.stdin.flush()
        return self.answer()

    def answer(self) -> dict[str, Any]:
        """Wait for the next answer."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit(f"{self._name} has ended early: see its message above")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def stop(self) -> None:
        """End the script."""
        self._process.terminate()
        with self._process:  # closes its pipes and waits for it
            pass


def peer_python(folder: Path) -> str:
    """Return the interpreter of an environment with Avalanche; install it if needed."""
    python = folder / "bin" / "python"
    done = folder / AVALANCHE
    if not done.exists():
        CONSOLE.print(f"Installing {AVALANCHE} into {folder} …")
        venv.create(folder, with_pip=True, clear=True)
        ours = sysconfig.get_path("purelib")
        inside = [str(python), "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]
        theirs = subprocess.run(inside, capture_output=True, text=True, check=True).stdout.strip()
        # Our packages come after its own on the path, so that PyTorch is not installed twice.
        (Path(theirs) / "borrowed.pth").write_text(f"{ours}\n")
        subprocess.run([str(python), "-m", "pip", "install", "-q", AVALANCHE], check=True)
        done.touch()
    return str(python)


def clock() -> float:
    """Return CPU seconds of this process if it has one thread, otherwise wall seconds.

    CPU seconds exclude other processes of the machine, but also the work of a CUDA device.
    """
    import torch  # late, because a child process starts with this process's peak memory

    alone = torch.get_num_threads() == 1 and not torch.cuda.is_initialized()
    return time.process_time() if alone else time.perf_counter()


def divert_prints() -> None:
    """Redirect the output of libraries to the error stream, away from the answers."""
    os.dup2(2, 1)


def say(**facts: Any) -> None:
    """Print one line as the answer."""
    os.write(ANSWERS, (json.dumps(facts) + "\n").encode())


def settle(device: str) -> None:
    """Wait until a CUDA device has finished its work."""
    if device.startswith("cuda"):
        import torch

        torch.cuda.synchronize(device)


@dataclass(frozen=True, slots=True, eq=False)
class Taker:
    """A contender that takes turns with others in one process."""

    train: Callable[[], dict[str, float] | None]
    """Trains for a block of steps; may return its own seconds."""
    evaluate: Callable[[], None]
    facts: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ProcessCost:
    """The cost of a process, including its child processes."""

    wall_s: float
    cpu_s: float
    peak_bytes: int
    stopped: bool = False
    """Whether the process was ended at the time limit."""


def measure(
    words: Sequence[str], setting: Mapping[str, str] | None = None, *, limit_s: float = 3600
) -> ProcessCost:
    """Run a command to its end or the limit; only `setting` controls how its threads wait."""
    waiting = ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY", "OPENBLAS_THREAD_TIMEOUT")
    environment = {name: value for name, value in os.environ.items() if name not in waiting}
    stopped = threading.Event()

    def stop() -> None:
        stopped.set()
        with suppress(ProcessLookupError):  # it has just ended by itself
            os.killpg(process.pid, signal.SIGKILL)

    with tempfile.TemporaryFile("w+") as messages:
        started = time.perf_counter()
        process = subprocess.Popen(
            words,
            stdin=subprocess.DEVNULL,
            stdout=messages,
            stderr=messages,
            env=environment | (dict(setting) if setting else {}),
            start_new_session=True,
        )
        timer = threading.Timer(limit_s, stop)
        timer.start()
        try:
            _, status, usage = os.wait4(process.pid, 0)
            wall_s = time.perf_counter() - started
            process.returncode = os.waitstatus_to_exitcode(status)
        finally:
            timer.cancel()
            if process.returncode is None:  # this script was interrupted
                stop()
                process.wait()
        if process.returncode and not stopped.is_set():
            messages.seek(0)
            told = "".join(messages.readlines()[-20:])
            raise SystemExit(f"`{' '.join(words)}` failed:\n{told}")
    cpu_s = usage.ru_utime + usage.ru_stime
    return ProcessCost(wall_s, cpu_s, 1024 * usage.ru_maxrss, stopped.is_set())


def processor() -> str:
    """Return the name of the processor."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def has_bf16() -> bool:
    """Return whether clinit trains in bfloat16 on this machine."""
    from clinit.machine import cpu_has_bf16

    return cpu_has_bf16()


def machine(load: float | None = None) -> str:
    """Return the processor, its cores and the load: the given load before the runs, or now."""
    now = f"{os.getloadavg()[0]:.1f} at the end" if load is None else f"{load:.2f} before"
    return f"{processor()}, {os.cpu_count()} cores; load average {now}"


def versions(*packages: str) -> str:
    """Return the versions of packages."""
    return ", ".join(f"{name} {version(name)}" for name in packages)


def command() -> str:
    """Return the command line, without paths of this machine."""
    words = [Path(word).name if word.startswith("/") else word for word in sys.argv[1:]]
    return f"Command: `python benchmarks/{Path(sys.argv[0]).name} {' '.join(words)}`."


def show(title: str, headings: Sequence[str], lines: Iterable[Sequence[str]]) -> None:
    """Print a table."""
    table = Table(*headings, title=title)
    for column in table.columns[1:]:
        column.justify = "right"
    for line in lines:
        table.add_row(*line)
    CONSOLE.print(table)


def markdown(headings: Sequence[str], lines: Iterable[Sequence[str]]) -> list[str]:
    """Return the lines of a table in Markdown."""
    rows = ["| " + " | ".join(line) + " |" for line in (headings, *lines)]
    return [rows[0], "|---|" + "---:|" * (len(headings) - 1), *rows[1:]]


def write(out: Path | None, name: str, lines: Iterable[str]) -> None:
    """Write a dated result into the folder `out`, if there is one."""
    if out is None:
        return
    where = f"{os.cpu_count()}-core-{processor()}".lower().replace(" ", "-")
    out.mkdir(parents=True, exist_ok=True)
    path = out / f"{name}_{where}_{datetime.date.today()}.md"
    path.write_text("\n".join(lines).rstrip("\n") + "\n", encoding="utf-8")
    CONSOLE.print(f"Written to {path}")

"""Commands of clinit in processes that need not load PyTorch: forked from one that has.

`Server` starts this file as a process of its own, which imports what the commands import and then
forks a child a job. The child behaves as `clinit` would: its own session, streams into files, the
limits and the interference of the job. No thread pool of the parent has been used, so a child may
start its own.
"""

from __future__ import annotations

import io
import json
import os
import resource
import select
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

TIMEOUT_S = 60.0
NOBODY = 65534
IMPORTS = (
    *("timm", "torch", "h5py", "polars", "optuna", "sqlalchemy.dialects.sqlite.pysqlite"),
    *("optuna.storages._rdb.models", "alembic.command", "matplotlib.figure"),
    *("matplotlib.backends.backend_agg", "sklearn.datasets", "safetensors.torch"),
    *("clinit.cli.main", "clinit.extract.run", "clinit.extract.arrays.import_features"),
    *("clinit.extract.dataset.scan", "clinit.analysis.report", "clinit.analysis.figures.save"),
    *(
        "clinit.analysis.diagnosis",
        "clinit.headtrain.experiment",
        "clinit.headtrain.align.alignment",
    ),
    *("clinit.headtrain.probe.protocol", "clinit.analysis.probe_table"),
    *(
        "clinit.headtrain.export.run",
        "clinit.headtrain.export.classifier",
        "clinit.headtrain.sweep.search",
    ),
    *("clinit.headtrain.sweep.runner", "clinit.headtrain.top.experiment"),
    *("clinit.headtrain.runs", "clinit.headtrain.top.images"),
)
"""What commands import as they go; one that is gone is left out."""
CRASHES = (signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGILL, signal.SIGFPE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A command, and what is done to it."""

    argv: Sequence[str]
    """Without `clinit` itself."""
    out: Path
    """Folder for its streams and its log, `<name>.out`, `<name>.err`, `<name>.log`."""
    name: str = "run"
    shim: Mapping[str, Any] | None = None
    """See `fault_trials.shim.install`."""
    more_memory: int | None = None
    """Bytes of address space beyond what the server itself has."""
    cpu_s: int | None = None
    timeout_s: float = TIMEOUT_S
    unprivileged: bool = False
    """Without the rights of root, where the server has them."""
    environment: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Done:
    """How a job ended."""

    code: int
    """Exit code, or minus the number of the signal that ended it."""
    stopped: bool
    """It took too long, and was ended."""
    seconds: float
    stdout: str
    stderr: str
    log: tuple[str, ...]
    """The file operations that the shim has counted: kind, a space, path."""

    @property
    def traceback(self) -> str:
        """The last line of a traceback, or what stands for one; empty where there is none."""
        if not self.stopped and self.code < 0 and -self.code in CRASHES:
            return f"ended by {signal.Signals(-self.code).name}"
        for text in (self.stderr, self.stdout):
            for sign in ("Traceback (most recent call last)", "panicked at", "Exception ignored"):
                if sign in text:
                    last = [line for line in text.splitlines() if line and line[0] not in " ╭│╰"]
                    return (last or [sign])[-1][:200]
        return ""

    @property
    def said(self) -> str:
        """The error as one line."""
        return " ".join(self.stderr.split())[-300:]


class Server:
    """The process that forks; to be used in a `with` statement."""

    def __init__(self) -> None:
        source = Path(__file__).resolve().parents[2] / "src"
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(source), str(Path(__file__).resolve().parents[1])]),
            "OMP_NUM_THREADS": "1",
            "POLARS_MAX_THREADS": "1",
            "NO_COLOR": "1",
            "HF_HUB_OFFLINE": "1",
        }
        for name in ("COLUMNS", "LINES", "FORCE_COLOR", "PYTHONWARNINGS", "COVERAGE_PROCESS_START"):
            environment.pop(name, None)
        self._process = subprocess.Popen(
            [sys.executable, "-W", "ignore", __file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
            start_new_session=True,
            text=True,
        )
        self._number = 0
        self._replies: dict[int, dict[str, Any]] = {}
        self._jobs: dict[int, Job] = {}

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *exception: object) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()  # which ends it, and what it has running
        self._process.wait(timeout=30)
        assert self._process.stdout is not None
        self._process.stdout.close()

    def start(self, job: Job) -> int:
        """Start a job; return its number."""
        assert self._process.stdin is not None
        self._number += 1
        content = {
            "number": self._number,
            "argv": list(job.argv),
            "out": str(job.out),
            "name": job.name,
            "shim": dict(job.shim) if job.shim else None,
            "more_memory": job.more_memory,
            "cpu_s": job.cpu_s,
            "timeout_s": job.timeout_s,
            "unprivileged": job.unprivileged,
            "environment": dict(job.environment),
        }
        job.out.mkdir(parents=True, exist_ok=True)
        self._jobs[self._number] = job
        self._process.stdin.write(json.dumps(content) + "\n")
        self._process.stdin.flush()
        return self._number

    def ended(self, number: int, *, within_s: float) -> bool:
        """Return whether a job ends within some seconds."""
        deadline = time.monotonic() + within_s
        assert self._process.stdout is not None
        while number not in self._replies:
            left = deadline - time.monotonic()
            # The pipe holds whole lines only, and each is read at once: nothing waits in a buffer.
            if left <= 0 or not select.select([self._process.stdout], [], [], left)[0]:
                return False
            self._read()
        return True

    def wait(self, number: int) -> Done:
        """Wait for a job."""
        while number not in self._replies:
            self._read()
        reply, job = self._replies.pop(number), self._jobs.pop(number)

        def text(ending: str) -> str:
            path = job.out / f"{job.name}.{ending}"
            if not path.exists():
                return ""
            # newline="": a carriage return is a control character, not the end of a line
            with path.open(encoding="utf-8", errors="backslashreplace", newline="") as file:
                return file.read(5_000_000)

        log = tuple(text("log").splitlines())
        return Done(
            reply["code"], reply["stopped"], reply["seconds"], text("out"), text("err"), log
        )

    def run(self, job: Job) -> Done:
        """Start a job and wait for it."""
        return self.wait(self.start(job))

    def _read(self) -> None:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"the fork server has ended with {self._process.wait()}")
        reply = json.loads(line)
        self._replies[reply["number"]] = reply


class _Children:
    """The jobs that run, in the server's process."""

    def __init__(self) -> None:
        self._running: dict[int, tuple[int, int, float, float]] = {}
        """By process descriptor: number, process, start, deadline."""

    @property
    def descriptors(self) -> list[int]:
        return list(self._running)

    @property
    def next_deadline(self) -> float:
        return min((each[3] for each in self._running.values()), default=float("inf"))

    def start(self, job: dict[str, Any]) -> None:
        process = os.fork()
        if process == 0:
            _become(job)
        now = time.monotonic()
        descriptor = os.pidfd_open(process)
        self._running[descriptor] = (job["number"], process, now, now + job["timeout_s"])

    def reap(self, descriptor: int, *, stop: bool = False) -> None:
        number, process, started, _ = self._running.pop(descriptor)
        if stop:
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        _, status = os.waitpid(process, 0)
        with suppress(ProcessLookupError):
            os.killpg(process, signal.SIGKILL)  # what it has started itself
        os.close(descriptor)
        seconds = time.monotonic() - started
        code = os.waitstatus_to_exitcode(status)
        reply = {"number": number, "code": code, "stopped": stop, "seconds": seconds}
        print(json.dumps(reply), flush=True)

    def stop_late(self) -> None:
        now = time.monotonic()
        for descriptor, (_, _, _, deadline) in list(self._running.items()):
            if deadline <= now:
                self.reap(descriptor, stop=True)


def serve() -> None:
    """Fork a child a line of standard input, until there is no more."""
    import gc
    import importlib

    for name in IMPORTS:
        with suppress(ModuleNotFoundError):
            importlib.import_module(name)
    import torch

    torch.set_num_threads(1)
    gc.freeze()  # pages of the parent stay shared
    children, waiting = _Children(), b""
    while True:
        wait_s = max(0.0, min(children.next_deadline - time.monotonic(), 3600.0))
        ready, _, _ = select.select([0, *children.descriptors], [], [], wait_s)
        for descriptor in ready:
            if descriptor:
                children.reap(descriptor)
        children.stop_late()
        if 0 in ready:
            read = os.read(0, 65536)
            if not read:
                break
            *lines, waiting = (waiting + read).split(b"\n")
            for line in lines:
                children.start(json.loads(line))
    for descriptor in children.descriptors:
        children.reap(descriptor, stop=True)


def _become(job: dict[str, Any]) -> None:
    """Turn a fresh child into the command of a job; never return."""
    import atexit
    import threading
    import traceback

    os.setsid()
    out = Path(job["out"])
    for descriptor, path in (
        (0, Path(os.devnull)),
        (1, out / f"{job['name']}.out"),
        (2, out / f"{job['name']}.err"),
    ):
        opened = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC)
        os.dup2(opened, descriptor)
        os.close(opened)
    os.environ.update({"COLUMNS": "120", **job["environment"]})
    encoding, _, errors = os.environ.get("PYTHONIOENCODING", "utf-8").partition(":")
    # Blocks, as where a stream is a file: what is written late is written by the flush below.
    sys.stdout = io.TextIOWrapper(io.FileIO(1, "w", closefd=False), encoding, errors or None)
    sys.stderr = io.TextIOWrapper(
        io.FileIO(2, "w", closefd=False), encoding, "backslashreplace", line_buffering=True
    )
    os.chdir(out)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.argv = ["clinit", *job["argv"]]
    code = 0
    try:
        if job["shim"]:
            from fault_trials import shim

            shim.install(job["shim"], out / f"{job['name']}.log")
        if job["more_memory"]:
            pages = int(Path("/proc/self/statm").read_text().split()[0])
            limit = pages * resource.getpagesize() + job["more_memory"]
            resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
        if job["cpu_s"]:
            resource.setrlimit(resource.RLIMIT_CPU, (job["cpu_s"], job["cpu_s"]))
        if job["unprivileged"] and os.geteuid() == 0:
            os.setgroups([])
            os.setgid(NOBODY)
            os.setuid(NOBODY)
        from clinit.cli.main import main

        main()
    except SystemExit as error:
        if isinstance(error.code, str):
            print(error.code, file=sys.stderr)
        code = error.code if isinstance(error.code, int) else int(error.code is not None)
    except BaseException:
        traceback.print_exc()
        code = 1
    # As an interpreter ends, without taking down what the server has loaded.
    with suppress(BaseException):
        threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with suppress(BaseException):
            stream.flush()
    os._exit(code)


if __name__ == "__main__":
    serve()
    os._exit(0)  # without the remarks of libraries that are never taken down

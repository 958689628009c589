"""Commands of clinit in processes of their own, to which something happens.

Each is forked from one process that has loaded the libraries. What happens, happens at one file
operation below the folder `out`, of which the audit events of Python tell before each is done:
opening for writing, rename, mkdir, remove, link, lock.
"""

import json
import multiprocessing
import os
import resource
import signal
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event
from typing import Any

TIMEOUT_S = 600.0
LOADED = (
    *("timm", "torch", "h5py", "polars", "matplotlib.figure", "safetensors.torch"),
    *("sqlalchemy.dialects.sqlite.pysqlite", "clinit.cli.main", "clinit.extract.work.run"),
    *(
        "clinit.analysis.report",
        "clinit.headtrain.protocol.experiment",
        "clinit.headtrain.top.experiment",
    ),
)
CRASHES = (signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGILL, signal.SIGFPE)
FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload(list(LOADED))
CHANGES = {
    **{f"os.{name}": 0 for name in ("mkdir", "remove", "rmdir", "truncate")},
    **{f"os.{name}": 1 for name in ("rename", "link", "symlink")},
    **{"fcntl.flock": 0, "fcntl.lockf": 0},
}
"""Audit events of operations, and which of their arguments is the path that is changed."""


@dataclass(frozen=True, slots=True)
class Fault:
    """What happens at which operation."""

    mode: str = "count"
    """The name of an error or of a signal; `pause` waits for the file `go`; `count`: nothing."""
    at: int = 0
    """The first is 1."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What the process may use."""

    cpu_s: int = 60
    memory: int = 4 << 30
    """Bytes of address space beyond what a command that does nothing has."""
    file_size: int | None = None
    """Bytes; a write beyond them fails as on a full disk."""


@dataclass(frozen=True, slots=True)
class Done:
    """How a command ended."""

    code: int
    """Exit code, or minus the number of the signal that ended it."""
    out: str
    err: str
    operations: tuple[str, ...]

    def problems(self, *, ends: Sequence[int] = (0, 1, 2)) -> list[str]:
        """Return what is wrong with how it ended, whatever it has done."""
        text = self.err + self.out
        if self.code < 0 and -self.code in CRASHES:
            return [f"ended by {signal.Signals(-self.code).name}"]
        if any(sign in text for sign in ("Traceback (most", "panicked at", "Exception ignored")):
            return [f"traceback: {self.err[-600:]}"]
        found = [] if self.code in ends else [f"exit {self.code}: {self.err[-300:]!r}"]
        if self.code == 1 and not self.err.partition("Error:")[2].strip():
            found += [] if "Warning:" in self.err else [f"exit 1 without an error: {self.err!r}"]
        raw = [ch for ch in text if (ord(ch) < 32 and ch not in "\n\t") or 127 <= ord(ch) < 160]
        return found + [f"control character {each!r} in {text[-300:]!r}" for each in raw[:1]]


@dataclass(slots=True)
class Running:
    """A command that has been started in a folder, from which it is called."""

    folder: Path
    name: str
    process: Any = field(init=False, repr=False)

    def ended(self, within_s: float) -> bool:
        """Return whether it ends within some seconds."""
        self.process.join(within_s)
        return self.process.exitcode is not None

    def wait(self) -> Done:
        """Wait for its end.

        Raises:
            AssertionError: If it does not end within `TIMEOUT_S`.
        """
        late = not self.ended(TIMEOUT_S)
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)  # it, or workers that it has left
        self.process.join()
        out, err, log = (
            path.read_bytes().decode("utf-8", "backslashreplace")
            for path in (self.folder / f"{self.name}.{kind}" for kind in ("out", "err", "log"))
        )
        assert not late, f"no end after {TIMEOUT_S} s: {err}"
        return Done(self.process.exitcode, out, err, tuple(log.splitlines()))


def start(
    words: Sequence[str],
    folder: Path,
    *,
    fault: Fault = Fault(),
    limits: Limits = Limits(),
    name: str = "run",
) -> Running:
    """Start `clinit` with these words, in `folder`."""
    job = Running(folder, name)
    job.process = FORKS.Process(target=_become, args=(list(words), folder, fault, limits, name))
    job.process.start()
    return job


def run(words: Sequence[str], folder: Path, **more: Any) -> Done:
    """Start `clinit` and wait for its end; see `start`."""
    return start(words, folder, **more).wait()


def _become(words: list[str], folder: Path, fault: Fault, limits: Limits, name: str) -> None:
    """Turn a fresh process into the command."""
    os.setsid()
    os.chdir(folder)
    for number, kind in ((1, "out"), (2, "err")):
        os.dup2(os.open(f"{name}.{kind}", os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
    sys.stdout = open(1, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
    sys.__stderr__ = sys.stderr  # type: ignore[misc]
    os.environ |= {"COLUMNS": "120", "NO_COLOR": "1", "HF_HUB_OFFLINE": "1"}
    signal.signal(signal.SIGINT, signal.default_int_handler)
    import warnings

    import torch

    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    log = os.open(f"{name}.log", os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND)
    if limits.file_size is None:  # which would hold for the log too
        _install(fault, log)
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    memory = pages * resource.getpagesize() + limits.memory
    resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
    resource.setrlimit(resource.RLIMIT_CPU, (limits.cpu_s, limits.cpu_s))
    if limits.file_size is not None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (limits.file_size, limits.file_size))
    sys.argv = ["clinit", *words]
    from clinit.cli.main import main

    main()


def _install(fault: Fault, log: int) -> None:
    """Let `fault` happen at an operation of this process, and write all of them down."""
    scope, count, go = str(Path("out").absolute()), 0, Path("go").absolute()

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        nonlocal count
        path = _changed(event, arguments)
        if path is None or not f"{path}/".startswith(f"{scope}/"):
            return
        count += 1
        os.write(log, f"{event} {path.removeprefix(scope)}\n".encode("utf-8", "replace"))
        if count != fault.at:
            return
        if fault.mode == "pause":
            go.with_name("paused").touch()
            while not go.exists():
                Event().wait(0.002)
        elif fault.mode.startswith("SIG"):
            os.kill(os.getpid(), signal.Signals[fault.mode])
        else:
            import errno

            number = getattr(errno, fault.mode)
            raise OSError(number, os.strerror(number), path)

    sys.addaudithook(hook)


def _changed(event: str, arguments: tuple[Any, ...]) -> str | None:
    """Return the path that an operation is about to change; None if it changes nothing."""
    if event == "open":
        path, _, flags = arguments
        writes = isinstance(flags, int) and flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)
        if isinstance(path, int) or not writes:
            return None
    elif event in CHANGES:
        path = arguments[CHANGES[event]]
        if isinstance(path, int):
            path = os.readlink(f"/proc/self/fd/{path}")  # noqa: PTH115 - it is no Path
    else:
        return None
    return os.path.abspath(os.fsdecode(path))  # noqa: PTH100 - no link is followed


def told(path: Path) -> Any:
    """Return a JSON document."""
    return json.loads(path.read_text(encoding="utf-8"))

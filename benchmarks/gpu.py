"""The speed of clinit on a GPU, next to the limits of the GPU.

    make gpu
    python benchmarks/gpu.py --out benchmarks/
    python benchmarks/gpu.py --device cpu --scale tiny       # a rehearsal, without a GPU

The script first measures the limits of the device (matrix products, bytes moved), then images/s of
extraction, steps/s of top blocks, least squares and steps/s of heads, each next to its limit.
Weights, features and photographs are random, because times do not depend on them. The result is
written after each part; it lists the parts that exceeded the time limit.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import FrameType

import torch
from gpu_setting import SCALES, Lines, Setting
from harness import processor

from clinit.machine import choose_device

SECONDS, TEST_SECONDS = 570, 120
"""Of all: ten minutes including the start of Python; and of the tests alone."""


class OutOfTime(BaseException):
    """The time limit is reached. A BaseException, so that no `except Exception` catches it."""


@dataclass(slots=True)
class Table:
    """One table of the result."""

    title: str
    headings: tuple[str, ...]
    note: str
    measure: Callable[[Setting], Lines]
    most_s: float
    """Its share of `SECONDS`, so that a slow part does not cost the parts after it."""
    lines: list[list[str]] = field(default_factory=list)
    seconds: float = 0.0
    problem: str = "not measured: the time limit was reached before"
    """Why the table is incomplete; empty if it is complete."""

    def run(self, setting: Setting, left_s: float, times: float) -> None:
        """Measure line by line, so that an error or the time limit keeps the lines before it.

        Args:
            setting: Device and sizes.
            left_s: Time left for all parts.
            times: Multiple of `most_s`, if all parts may take longer than `SECONDS`.
        """
        started, limit_s = time.perf_counter(), min(max(1.0, times) * self.most_s, left_s)
        if limit_s <= 0:
            return
        try:
            with at_most(limit_s):
                for line in self.measure(setting):
                    self.lines.append(line)
            self.problem = ""
        except OutOfTime:
            self.problem = f"cut off after {limit_s:,.0f} s"
        except Exception as error:  # the other parts are still useful
            traceback.print_exc()
            self.problem = f"failed: {type(error).__name__}: {str(error).strip()[:300]}"
        finally:
            self.seconds = time.perf_counter() - started
            told = {"part": self.title, "seconds": round(self.seconds, 1), "lines": self.lines}
            print(json.dumps({**told, "problem": self.problem}), flush=True)

    def text(self) -> list[str]:
        """Return the table in Markdown."""
        found = [f"## {self.title}", ""]
        if self.lines:
            found += ["| " + " | ".join(self.headings) + " |", "|" + "---|" * len(self.headings)]
            found += ["| " + " | ".join(line) + " |" for line in self.lines]
            found += ["", self.note, ""]
        if self.problem:
            found += [f"**{self.title}: {self.problem}.**", ""]
        return [*found, f"({self.seconds:,.0f} s)", ""]


def parts() -> list[Table]:
    """Return the parts in order, the most telling first."""
    import gpu_extract
    import gpu_heads
    import gpu_limits
    import gpu_top

    return [
        Table("Limits", gpu_limits.HEADINGS, gpu_limits.NOTE, gpu_limits.measure, 40),
        Table(
            "Protocol", gpu_heads.OF_PROTOCOL, gpu_heads.PROTOCOL, gpu_heads.measure_protocol, 150
        ),
        Table("Least squares", gpu_heads.OF_SOLVE, gpu_heads.SOLVE, gpu_heads.measure_solve, 20),
        Table("Workload", (), "", gpu_top.prepare, 40),
        Table("Extraction", gpu_extract.HEADINGS, gpu_extract.NOTE, gpu_extract.measure, 150),
        Table("Top blocks", gpu_top.HEADINGS, gpu_top.NOTE, gpu_top.measure, 60),
        Table("Heads", gpu_heads.HEADINGS, gpu_heads.NOTE, gpu_heads.measure, 130),
    ]


@contextmanager
def at_most(seconds: float) -> Iterator[None]:
    """Raise OutOfTime in the block when its time has passed."""

    def stop(number: int, frame: FrameType | None) -> None:
        raise OutOfTime

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, max(0.001, seconds))
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def run_tests(say: Callable[[str], None]) -> str:
    """Run the tests that need a GPU, of the files that have some; return pytest's last line."""
    say("the tests that need a GPU")
    root = Path(__file__).parents[1]
    marked = (f for f in root.glob("tests/**/test_*.py") if "mark.gpu" in f.read_text("utf-8"))
    command = [sys.executable, "-m", "pytest", "-m", "gpu", "-q", "--color=no", "--tb=short"]
    with subprocess.Popen(
        [*command, *sorted(map(str, marked))], cwd=root, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        last = ""
        try:
            for line in process.stdout:
                print(line, end="", flush=True)
                last = line.strip() or last
        except OutOfTime:
            process.kill()
            raise
    return last if process.returncode == 0 else f"FAILED: {last}"


def report(setting: Setting, found: list[Table], tests: str, command: str) -> str:
    """Return the dated Markdown result."""
    names = ("torch", "timm", "numpy", "cupy-cuda12x", "cupy-cuda13x")
    versions = ", ".join(f"{name} {known}" for name in names if (known := _version(name)))
    head = [
        f"# clinit on {_device_name(setting.device)}, {datetime.date.today()}",
        "",
        f"{_device_name(setting.device)}; {processor()}, {os.cpu_count()} cores, load"
        f" {os.getloadavg()[0]:.1f} at the end. {versions}. Times are wall seconds.",
        f"Command: `{command}`.",
        "",
        f"Tests that need a GPU: {tests}.",
        "",
    ]
    return "\n".join([*head, *(line for part in found for line in part.text())])


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return ""


def _device_name(device: torch.device) -> str:
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"{os.cpu_count()}-core {processor()}"


def main() -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, help="Folder of the dated result.")
    parser.add_argument("--device", default="cuda", help="cuda, cuda:<index> or cpu.")
    parser.add_argument("--scale", choices=SCALES, default="paper", help="How much is measured.")
    parser.add_argument("--tests", action="store_true", help="First run the tests that need a GPU.")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="What all may take.")
    parser.add_argument(
        "--workers", type=int, default=min(8, os.cpu_count() or 1), help="Threads that decode."
    )
    options = parser.parse_args()
    device = choose_device(options.device)
    started = time.perf_counter()

    def say(text: str) -> None:
        print(f"[{time.perf_counter() - started:5.0f} s] {text}", flush=True)

    tests = "cut off by the time limit" if options.tests else "not run"
    found = parts()
    with tempfile.TemporaryDirectory() as folder:
        scale = SCALES[options.scale]
        setting = Setting(device, scale, Path(folder), options.workers, say)
        path = None
        if options.out:
            options.out.mkdir(parents=True, exist_ok=True)
            name = _device_name(device).lower().replace(" ", "-")
            path = options.out / f"gpu_{name}_{datetime.date.today()}.md"

        def write() -> None:
            if path is not None:
                path.write_text(report(setting, found, tests, f"python {' '.join(sys.argv)}"))

        def left() -> float:
            return float(options.seconds) - (time.perf_counter() - started)

        if options.tests:
            with suppress(OutOfTime), at_most(min(TEST_SECONDS, left())):
                tests = run_tests(say)
        for part in found:
            say(part.title)
            part.run(setting, left(), options.seconds / SECONDS)
            write()
    if path is not None:
        say(f"written to {path}")
    failed = [part.title for part in found if part.problem.startswith("failed")]
    failed += ["the tests"] if tests.startswith("FAILED") else []
    if failed:
        sys.exit(f"not everything has worked: {', '.join(failed)}")


if __name__ == "__main__":
    main()

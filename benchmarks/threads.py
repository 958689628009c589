"""How long idle threads should wait: whole commands on a quiet machine and on a busy one.

    python benchmarks/threads.py --out benchmarks/

An idle thread of GNU's OpenMP (in PyTorch's wheels) spins before it sleeps: for 300,000 turns, or
as set by `GOMP_SPINCOUNT`; for none with `OMP_WAIT_POLICY=PASSIVE`. An idle thread of OpenBLAS (in
NumPy and SciPy) spins for 2^28 clock cycles, a tenth of a second, or as set by
`OPENBLAS_THREAD_TIMEOUT`.

Every run is one process, measured from start to end; settings take turns. Endless loops, which this
script starts and ends, make the machine busy. `demo` reads its own digits, `train-head` Gaussian
classes that this script makes.
"""

from __future__ import annotations

import argparse
import datetime
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path

import numpy as np
from harness import CONSOLE, ProcessCost, command, machine, markdown, measure, show, versions, write

_LONG = {"OPENBLAS_THREAD_TIMEOUT": "28"}
SETTINGS = {
    # The defaults of the libraries, set here because clinit would set its own.
    "default": {"GOMP_SPINCOUNT": "300000", **_LONG},
    "passive": {"OMP_WAIT_POLICY": "PASSIVE", **_LONG},
    "spin-1000": {"GOMP_SPINCOUNT": "1000", **_LONG},
    "blas-14": {"GOMP_SPINCOUNT": "1000", "OPENBLAS_THREAD_TIMEOUT": "14"},
}
COMMANDS = ("train-head", "demo")
LOOP = """\
import os, sys
while os.getppid() == int(sys.argv[1]):  # whatever ends the script ends its loops
    for _ in range(1_000_000):
        pass
"""


@dataclass(frozen=True, slots=True)
class Size:
    """The workload of `train-head`."""

    base: int
    """Base classes of the synthetic features."""
    new: int
    dim: int
    rows: int
    """Training rows per class."""
    iterations: int
    """Iterations per task; there are two tasks."""


FULL = Size(base=400, new=100, dim=384, rows=10, iterations=40)
SMALL = Size(base=6, new=4, dim=8, rows=4, iterations=2)


class CommandsWorkload:
    """The inputs of the commands in a folder, and the command lines."""

    def __init__(self, folder: Path, size: Size) -> None:
        self.folder, self.size = folder, size
        self._runs = count()

    def command(self, name: str) -> list[str]:
        """Return a command line that writes into its own folder."""
        size, out = self.size, self.folder / f"out-{next(self._runs)}"
        words: tuple[object, ...] = ("demo",)
        if name == "train-head":
            words = (
                *("train-head", "--base", self.folder / "base"),
                *("--new", self.folder / "new", "--tasks", 2),
                *("--iterations", size.iterations, "--eval-every", size.iterations),
                *("--buffer", size.base * size.rows, "--device", "cpu"),
            )
        return [sys.executable, "-m", "clinit", *map(str, words), "--out", str(out)]

    def tidy(self) -> None:
        """Remove the output of the last command."""
        for out in self.folder.glob("out-*"):
            shutil.rmtree(out)

    def make(self) -> None:
        """Write the features that `train-head` reads."""
        from safetensors.numpy import save_file

        from clinit.extract.work.import_features import import_features
        from clinit.extract.work.options import ImportConfig

        size, rng = self.size, np.random.default_rng(0)
        means = rng.standard_normal((size.base + size.new, size.dim), dtype=np.float32)
        head = {"weight": means[: size.base], "bias": -(means[: size.base] ** 2).sum(1) / 2}
        save_file(head, self.folder / "head.safetensors")
        for side, first, classes in (("base", 0, size.base), ("new", size.base, size.new)):
            names = self.folder / f"{side}.txt"
            names.write_text("".join(f"{side}-{row}\n" for row in range(classes)))
            for split in ("train", "val"):
                labels = np.repeat(np.arange(classes), size.rows)
                noise = rng.standard_normal((len(labels), size.dim), dtype=np.float32)
                np.save(self.folder / "x.npy", means[first + labels] + noise)
                np.save(self.folder / "y.npy", labels)
                own = self.folder / "head.safetensors" if side == "base" else None
                import_features(
                    self.folder / "x.npy",
                    self.folder / "y.npy",
                    self.folder / side,
                    ImportConfig(backbone="made", split=split, classes=names, head=own),
                )


@contextmanager
def busy(loops: int) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Keep `loops` CPUs busy by that many endless loops."""
    command = [sys.executable, "-S", "-c", LOOP, str(os.getpid())]
    running = [subprocess.Popen(command, stdout=subprocess.DEVNULL) for _ in range(loops)]
    try:
        yield running
    finally:
        for loop in running:
            loop.kill()
        for loop in running:
            loop.wait()


Found = dict[tuple[str, bool, str], list[ProcessCost]]
"""Runs by command, whether the machine was busy, and setting."""


def compete(work: CommandsWorkload, options: argparse.Namespace) -> Found:
    """Let all settings take turns, command by command."""
    found: Found = defaultdict(list)
    for repeat in range(max(options.repeats, options.demo_repeats)):
        turn = repeat % len(options.settings)
        settings = options.settings[turn:] + options.settings[:turn]
        for name in options.commands:
            if repeat >= (options.demo_repeats if name == "demo" else options.repeats):
                continue
            for loops in (0, options.busy):
                with busy(loops):
                    for setting in settings:
                        command = work.command(name)
                        run = measure(command, SETTINGS[setting], limit_s=options.limit)
                        work.tidy()
                        found[name, bool(loops), setting].append(run)
                        CONSOLE.print(
                            f"{name}, {loops} loops, {setting}: {run.wall_s:.1f} s,"
                            f" {run.cpu_s:.1f} CPU s{' (stopped)' if run.stopped else ''}"
                        )
    return found


HEADINGS = (
    *("command", "setting", "quiet: s", "CPU s", "/ default"),
    *("busy: s", "CPU s", "/ default"),
)


def rows_of(found: Found, options: argparse.Namespace) -> list[list[str]]:
    """Return the lines of the table."""
    lines, shares = [], defaultdict[tuple[bool, str], list[float]](list)
    for name in options.commands:
        for setting in options.settings:
            line = [name, setting]
            for loaded in (False, True):
                runs = found[name, loaded, setting]
                wall_s = median_wall_s(runs)
                share = wall_s / median_wall_s(found[name, loaded, options.settings[0]])
                shares[loaded, setting].append(share)
                bound = "> " if any(run.stopped for run in runs) else ""
                cpu_s = statistics.median(run.cpu_s for run in runs)
                line += [f"{bound}{wall_s:.1f}", f"{bound}{cpu_s:.1f}", f"{share:.2f}"]
            lines.append(line)
    for setting in options.settings if len(options.commands) > 1 else ():
        quiet, loaded = (statistics.geometric_mean(shares[b, setting]) for b in (False, True))
        lines.append(["geometric mean", setting, "", "", f"{quiet:.2f}", "", "", f"{loaded:.2f}"])
    return lines


def median_wall_s(runs: Sequence[ProcessCost]) -> float:
    """Return the median seconds of runs; a stopped run counts with its seconds until then."""
    return statistics.median(run.wall_s for run in runs)


def report(lines: list[list[str]], options: argparse.Namespace, load: float) -> list[str]:
    """Return the dated Markdown result."""
    told = [f"`{name}`: {given(SETTINGS[name])}" for name in options.settings]
    size = options.size
    return [
        f"# Waiting threads, {datetime.date.today()}",
        "",
        f"{machine(load)}; OMP_NUM_THREADS {os.environ.get('OMP_NUM_THREADS', 'not set')}."
        f" {versions('torch', 'numpy', 'scipy')}.",
        command(),
        "",
        f"Whole processes, wall and CPU seconds, medians of {options.repeats}"
        f" (demo: {options.demo_repeats}); *busy*: next to {options.busy} endless loops."
        f" */ default*: wall seconds over those of `{options.settings[0]}`."
        f" A run is stopped after {options.limit:.0f} s: *>*.",
        "",
        "; ".join(told) + ".",
        "",
        f"*train-head*: {size.base:,} + {size.new:,} classes, d = {size.dim}, two tasks of"
        f" {size.iterations} iterations, three heads. *demo*: `clinit demo`, which extracts, trains"
        " and reports.",
        "",
        *markdown(HEADINGS, lines),
    ]


def given(setting: Mapping[str, str]) -> str:
    """Return the assignments of a setting in the syntax of a shell."""
    return " ".join(f"{name}={value}" for name, value in setting.items())


def main() -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, help="Folder of the dated result.")
    parser.add_argument("--commands", nargs="+", choices=COMMANDS, default=list(COMMANDS))
    parser.add_argument(
        "--settings",
        nargs="+",
        choices=SETTINGS,
        default=list(SETTINGS),
        help="The first is what the others are compared with.",
    )
    parser.add_argument("--repeats", type=int, default=2, help="Runs of each but the demo.")
    parser.add_argument("--demo-repeats", type=int, default=1)
    parser.add_argument(
        "--busy", type=int, default=os.cpu_count() or 1, help="Endless loops; default: CPUs."
    )
    parser.add_argument("--limit", type=float, default=90, help="Most seconds of a run.")
    parser.add_argument(
        "--small",
        dest="size",
        action="store_const",
        const=SMALL,
        default=FULL,
        help="The smallest workload, to rehearse.",
    )
    options = parser.parse_args()
    if min(options.repeats, options.demo_repeats, options.busy) < 1:
        parser.error("--repeats, --demo-repeats and --busy must be positive")
    started, load = time.perf_counter(), os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as folder:
        work = CommandsWorkload(Path(folder), options.size)
        CONSOLE.print("Making the workload …")
        work.make()
        found = compete(work, options)
    lines = rows_of(found, options)
    show("Threads", HEADINGS, lines)
    CONSOLE.print(f"{time.perf_counter() - started:.0f} s in all")
    write(options.out, "threads", report(lines, options, load))


if __name__ == "__main__":
    main()

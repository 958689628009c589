"""Processes that take turns, and the environment of a peer: the machinery of benchmarks."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import sysconfig
import venv
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from heads_workload import FULL_ITERATIONS, TASKS
from rich.console import Console

AVALANCHE = "avalanche-lib==0.6.0"
CONSOLE = Console(width=120)


@dataclass(slots=True)
class Contender:
    """A process that takes turns, and what it answered."""

    name: str
    kind: str
    options: dict[str, Any]
    python: str = sys.executable
    heads: int = 1
    seconds: dict[int, list[float]] = field(default_factory=lambda: defaultdict(list))
    """Of a step, by task, a value a block."""
    facts: dict[str, Any] = field(default_factory=dict)
    process: subprocess.Popen[str] | None = None

    def start(self, folder: Path, threads: int) -> None:
        """Start the process and wait until it has read the workload."""
        script = Path(__file__).with_name("heads_contenders.py")
        environment = {**os.environ, "OMP_NUM_THREADS": str(threads), "WANDB_MODE": "disabled"}
        environment |= {"PYTHONWARNINGS": "ignore"}
        command = [self.python, str(script), self.kind, str(folder), json.dumps(self.options)]
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )
        self.facts |= self._answer()

    def turn(self) -> None:
        """Let it do a block of steps."""
        answer = self._tell()
        self.seconds[answer["task"]].append(answer["seconds"] / answer["steps"])

    def finish(self) -> None:
        """Let it do what comes after the last step, and end it."""
        self.facts |= self._tell()
        self.stop()

    def stop(self) -> None:
        """End the process."""
        if self.process is not None:
            self.process.terminate()
            self.process.wait()
            self.process = None

    @property
    def blocks(self) -> int:
        """Turns that it takes."""
        return TASKS * -(-int(self.options["iterations"]) // int(self.options["block"]))

    def step_s(self, task: int | None = None) -> float:
        """Return the mean seconds of a step, in one task or over all, of the whole protocol.

        The first block of a task, in which loaders start, counts once in all its steps.
        """
        if task is None:
            return statistics.mean(self.step_s(each) for each in self.seconds)
        first, *rest = self.seconds[task]
        if not rest:
            return first
        share = self.options["block"] / max(FULL_ITERATIONS, self.options["iterations"])
        return float(share * first + (1 - share) * statistics.mean(rest))

    def _tell(self) -> dict[str, Any]:
        assert self.process is not None
        assert self.process.stdin is not None
        self.process.stdin.write("go\n")
        self.process.stdin.flush()
        return self._answer()

    def _answer(self) -> dict[str, Any]:
        assert self.process is not None
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit(f"{self.name} has ended early: see its message above")
        answer: dict[str, Any] = json.loads(line)
        return answer


def peer_python(folder: Path) -> str:
    """Return the interpreter of an environment that holds Avalanche; install it where needed."""
    python = folder / "bin" / "python"
    done = folder / AVALANCHE
    if not done.exists():
        CONSOLE.print(f"Installing {AVALANCHE} into {folder} …")
        venv.create(folder, with_pip=True, clear=True)
        ours = sysconfig.get_path("purelib")
        inside = [str(python), "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]
        theirs = subprocess.run(inside, capture_output=True, text=True, check=True).stdout.strip()
        # Behind its own packages it sees ours: PyTorch is there once.
        (Path(theirs) / "borrowed.pth").write_text(f"{ours}\n")
        subprocess.run([str(python), "-m", "pip", "install", "-q", AVALANCHE], check=True)
        done.touch()
    return str(python)


def compete(found: list[Contender], folder: Path, threads: int) -> None:
    """Let all take turns, block by block."""
    for contender in found:
        CONSOLE.print(f"Starting {contender.name} …")
        contender.start(folder, threads)
    most = max(contender.blocks for contender in found)
    for block in range(most):
        task = block * TASKS // most
        for contender in found:
            per_task = contender.blocks // TASKS
            if block % (most // TASKS) < per_task:
                contender.turn()
        CONSOLE.print(f"Round {block + 1} of {most}, task {task + 1}")
    for contender in found:
        contender.finish()
        CONSOLE.print(f"{contender.name}: {contender.facts}")


def measure_protocol(found: list[Contender], folder: Path, threads: int) -> None:
    """Run single heads of clinit through the whole protocol, on the clock."""
    for contender in found:
        if contender.kind == "clinit" and contender.heads == 1:
            run = Contender(contender.name, "protocol", contender.options)
            run.start(folder, threads)
            CONSOLE.print(f"The whole protocol with {run.name} …")
            contender.facts |= run._tell()
            run.stop()

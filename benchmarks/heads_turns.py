"""The race of `benchmarks/heads.py`: processes that take turns, block by block."""

from __future__ import annotations

import json
import statistics
import sys
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from harness import CONSOLE, Process
from heads_workload import FULL_ITERATIONS, TASKS


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
    process: Process | None = None

    def start(self, folder: Path, threads: int) -> None:
        """Start the process and wait until it has read the workload."""
        arguments = (self.kind, str(folder), json.dumps(self.options))
        self.process = Process(
            self.name, self.python, "heads_contenders.py", *arguments, threads=threads
        )
        self.facts |= self.process.answer()

    def go(self) -> dict[str, Any]:
        """Let it go on, and return its answer."""
        assert self.process is not None
        return self.process.tell("go")

    def turn(self) -> None:
        """Let it do a block of steps."""
        answer = self.go()
        self.seconds[answer["task"]].append(answer["seconds"] / answer["steps"])

    def finish(self) -> None:
        """Let it do what comes after the last step, and end it."""
        self.facts |= self.go()
        self.stop()

    def stop(self) -> None:
        """End the process."""
        if self.process is not None:
            self.process.stop()
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
            contender.facts |= run.go()
            run.stop()

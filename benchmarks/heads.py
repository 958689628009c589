"""Training heads: clinit, plain PyTorch and Avalanche on one stream, and the machine's limit.

    python benchmarks/heads.py --out benchmarks/

A head of 1,000 classes over 384 features learns 5 tasks of 73 new classes, with 128 new and 128
buffered rows per step. Features are Gaussian classes, and the pretrained head is Bayes' rule for
its classes, so that the accuracy shows whether a contender has learnt. Each contender is a process
with the same data; they take turns after each block of steps, so that they run under the same load
of the machine. On first use, Avalanche is installed into its own environment, which uses PyTorch
from this one.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import statistics
import sys
import tempfile
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from harness import (
    AVALANCHE,
    CONSOLE,
    PEERS,
    Process,
    command,
    has_bf16,
    machine,
    markdown,
    peer_python,
    show,
    versions,
    write,
)
from heads_workload import (
    BASE,
    CLASSES,
    DIM,
    EVAL_EVERY,
    FULL_ITERATIONS,
    TASKS,
    TEST_BASE,
    TEST_NEW,
    Size,
    make_workload,
)


@dataclass(slots=True)
class Contender:
    """A process that takes turns, and its answers."""

    name: str
    kind: str
    options: dict[str, Any]
    python: str = sys.executable
    heads: int = 1
    seconds: dict[int, list[float]] = field(default_factory=lambda: defaultdict(list))
    """Seconds per step by task, one value per block."""
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
        """Start the next turn of the process, and return its answer."""
        assert self.process is not None
        return self.process.tell("go")

    def turn(self) -> None:
        """Let the process train for a block of steps."""
        answer = self.go()
        self.seconds[answer["task"]].append(answer["seconds"] / answer["steps"])

    def finish(self) -> None:
        """Let the process evaluate after the last step, and end it."""
        self.facts |= self.go()
        self.stop()

    def stop(self) -> None:
        """End the process."""
        if self.process is not None:
            self.process.stop()
            self.process = None

    @property
    def blocks(self) -> int:
        """Number of turns."""
        return TASKS * -(-int(self.options["iterations"]) // int(self.options["block"]))

    def step_s(self, task: int | None = None) -> float:
        """Return the mean seconds per step of the whole protocol, in one task or over all tasks.

        The first block of a task, in which loaders start, counts once per task.
        """
        if task is None:
            return statistics.mean(self.step_s(each) for each in self.seconds)
        first, *rest = self.seconds[task]
        if not rest:
            return first
        share = self.options["block"] / max(FULL_ITERATIONS, self.options["iterations"])
        return float(share * first + (1 - share) * statistics.mean(rest))


def compete(found: list[Contender], folder: Path, threads: int) -> None:
    """Let all contenders take turns, block by block."""
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
    """Time single heads of clinit over the whole protocol."""
    for contender in found:
        if contender.kind == "clinit" and contender.heads == 1:
            run = Contender(contender.name, "protocol", contender.options)
            run.start(folder, threads)
            CONSOLE.print(f"The whole protocol with {run.name} …")
            contender.facts |= run.go()
            run.stop()


def contenders(options: argparse.Namespace, avalanche: str | None) -> list[Contender]:
    """Return the contenders."""
    shared = {
        "tasks": TASKS,
        "buffer": 24_000,
        "batch": 256,
        "seed": options.seed,
        "lr": 1e-3,
        "weight_decay": 0.05,
        "init": "random",
        "heads": 1,
        "device": "cpu",
        "threads": options.threads,
        "iterations": options.iterations,
        "block": options.block,
        "full_iterations": FULL_ITERATIONS,
        "eval_every": EVAL_EVERY,
    }
    short = {"iterations": min(25, options.iterations), "block": 25}
    precisions = ["float32", "bf16"] if has_bf16() else ["float32"]
    found = [
        Contender(f"products, {name}", "products", {**shared, "precision": name})
        for name in precisions
    ]
    for name in precisions:
        for heads in options.banks:
            own = {"precision": name, "heads": heads, **(short if heads > 9 else {})}
            title = f"clinit, {'one head' if heads == 1 else f'bank of {heads}'}, {name}"
            found.append(Contender(title, "clinit", {**shared, **own}, heads=heads))
    found.append(Contender("PyTorch, whole tensors", "plain", {**shared, "loader": False}))
    found.append(Contender("PyTorch, DataLoader", "plain", {**shared, "loader": True}))
    if avalanche is not None:
        found.append(Contender("Avalanche 0.6", "avalanche", shared, python=avalanche))
    return found


def protocol_s(contender: Contender) -> float:
    """Return the seconds of the whole protocol, from the times of a step and an evaluation.

    The work of an evaluation is the number of test rows times the number of classes seen.
    """
    points = FULL_ITERATIONS // EVAL_EVERY + 1
    edges = np.linspace(BASE, CLASSES, TASKS + 1)
    rows = TEST_BASE * BASE + TEST_NEW * (edges - BASE)
    share = float((rows[1:] * edges[1:]).sum() / (rows[-1] * edges[-1]))
    training = sum(FULL_ITERATIONS * contender.step_s(task) for task in contender.seconds)
    return training + points * share * float(contender.facts["evaluate_s"])


HEADINGS = (
    *("contender", "steps/s", "head-steps/s", "x Avalanche", "of the products"),
    *("A_all %", "evaluation s", "protocol s"),
)


def rows_of(found: list[Contender]) -> list[list[str]]:
    """Return the lines of the table."""
    limits = {c.options["precision"]: c for c in found if c.kind == "products"}
    peer = next((c for c in found if c.kind == "avalanche"), None)
    lines = []
    for contender in found:
        step = contender.step_s()
        limit = limits[contender.options.get("precision", "float32")]
        line = [contender.name, f"{1 / step:,.1f}", f"{contender.heads / step:,.1f}"]
        if contender.kind == "products":
            lines.append([*line, "", f"{products_rate(contender):,.0f} GFLOP/s", "", "", ""])
            continue
        share = contender.heads * limit.step_s() / step
        line.append(f"{contender.heads * peer.step_s() / step:.2f}" if peer else "")
        line += [f"{share:.0%}", accuracy(contender), f"{contender.facts['evaluate_s']:.2f}"]
        measured = contender.facts.get("protocol_s")
        protocol = f"{protocol_s(contender):,.0f}"
        lines.append([*line, f"{protocol} ({measured:,.0f} measured)" if measured else protocol])
    return lines


def accuracy(contender: Contender) -> str:
    """Return the accuracy; empty if the contender did fewer steps."""
    if contender.blocks * contender.options["block"] < max(200, contender.options["block"]):
        return ""
    return f"{contender.facts['accuracy']:.2f}"


def products_rate(contender: Contender) -> float:
    """Return GFLOP/s of the two products of a step, mean over tasks."""
    edges = np.linspace(BASE, CLASSES, TASKS + 1)[1:]
    rates = [
        4 * 256 * DIM * classes / contender.step_s(task) / 1e9
        for task, classes in enumerate(edges, start=1)
    ]
    return statistics.mean(rates)


READING = f"""\
* *products*: only the two matrix products of a step, in the same precision: the limit.
* *steps/s*: in tasks of {FULL_ITERATIONS} steps; the first block of a task, in which loaders
  start, counts once.
* *x Avalanche*, *of the products*: ratios of head-steps/s.
* *A_all*: on all 86,500 test rows after the last task; for a bank, of its first head, which has
  the settings of the other contenders.
* *evaluation*: one evaluation of all heads on these rows.
* *protocol*: {TASKS} x {FULL_ITERATIONS} steps and an evaluation every {EVAL_EVERY}, all heads,
  extrapolated from step and evaluation; in brackets, measured with initialisation.
"""


def report(lines: list[list[str]], options: argparse.Namespace) -> list[str]:
    """Return the dated Markdown result."""
    timed = "CPU seconds of the process" if options.threads == 1 else "wall seconds"
    return [
        f"# Training heads, d = {DIM}, {CLASSES:,} classes, {datetime.date.today()}",
        "",
        f"{machine()}; {options.threads} thread(s) a contender. Times are {timed}."
        f" {versions('torch', 'numpy')}, {AVALANCHE}.",
        command(),
        "",
        f"{BASE:,} + {TASKS} x 73 classes, 128 new + 128 buffered rows a step, buffer 24,000 rows,"
        " AdamW with lr 1e-3 and weight decay 0.05, random new rows, cross entropy.",
        f"{options.iterations} steps per task, in blocks of {options.block} that the contenders do"
        " in turn; banks of more than 9 heads do 25 steps per task, without accuracy.",
        "",
        *markdown(HEADINGS, lines),
        "",
        READING,
        "",
    ]


def main() -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, help="Folder of the dated result.")
    parser.add_argument(
        "--threads", type=int, default=os.cpu_count() or 1, help="Threads of each contender."
    )
    parser.add_argument("--iterations", type=int, default=200, help="Steps a task.")
    parser.add_argument("--block", type=int, default=50, help="Steps a turn.")
    parser.add_argument("--banks", type=int, nargs="*", default=[1, 3, 9, 45], help="Bank sizes.")
    parser.add_argument("--per-class", type=int, default=500, help="Training rows a new class.")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--no-avalanche", action="store_true")
    parser.add_argument("--no-protocol", action="store_true", help="Extrapolate it only.")
    options = parser.parse_args()
    avalanche = None if options.no_avalanche else peer_python(PEERS / "avalanche")
    found = contenders(options, avalanche)
    with tempfile.TemporaryDirectory() as folder:
        make_workload(Path(folder), Size(new_rows=options.per_class), options.seed)
        try:
            compete(found, Path(folder), options.threads)
            if not options.no_protocol:
                measure_protocol(found, Path(folder), options.threads)
        finally:
            for contender in found:
                contender.stop()
    lines = rows_of(found)
    show("Heads", HEADINGS, lines)
    write(options.out, "heads", report(lines, options))


if __name__ == "__main__":
    main()

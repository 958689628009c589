"""Training heads: clinit, plain PyTorch and Avalanche on one stream, beside the machine's limit.

    python benchmarks/heads.py --out benchmarks/

A head over 384 features that knows 1,000 classes learns 5 tasks of 73 more, with 128 new and 128
buffered rows a step. Features are Gaussian classes, the pretrained head is Bayes' rule for its
classes, so accuracies say whether a contender has really learnt. Every contender is a process
that holds the same data and does a block of steps in turn, task by task: they are compared over
the same seconds of the machine. Avalanche is installed into an environment of its own on first
use, which borrows PyTorch from this one.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import statistics
import subprocess
import sys
import sysconfig
import tempfile
import venv
from collections import defaultdict
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

CLASSES, BASE, TASKS, DIM = 1365, 1000, 5, 384
FULL_ITERATIONS, EVAL_EVERY = 600, 50
TEST_BASE, TEST_NEW = 50, 100
"""Test rows a class: 86,500 in all."""
NOISE = 4.2
"""Standard deviation of a class around its mean; that of the means is 1."""
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
        """Read what comes after the last step, and wait for the end."""
        self.facts |= self._answer()
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
        """Return the mean seconds of a step, of one task or over all.

        A mean: what comes once in many steps, the end of a pass over the rows, is part of it.
        """
        if task is not None:
            return statistics.mean(self.seconds[task])
        return statistics.mean(self.step_s(each) for each in self.seconds)

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


def make_workload(folder: Path, per_class: int, seed: int) -> None:
    """Write Gaussian classes in float16, and the head that knows the base classes."""
    rng = np.random.default_rng(seed)
    means = rng.standard_normal((CLASSES, DIM), dtype=np.float32)

    def write(name: str, base: int, new: int) -> None:
        counts = np.where(np.arange(CLASSES) < BASE, base, new)
        labels = np.repeat(np.arange(CLASSES), counts)
        features = np.empty((len(labels), DIM), dtype=np.float16)
        for start in range(0, len(labels), 10_000):
            part = slice(start, start + 10_000)
            noise = rng.standard_normal((len(labels[part]), DIM), dtype=np.float32)
            features[part] = means[labels[part]] + NOISE * noise
        np.save(folder / f"{name}_x.npy", features)
        np.save(folder / f"{name}_y.npy", labels.astype(np.int64))

    write("train", 24, per_class)
    write("test", TEST_BASE, TEST_NEW)
    np.save(folder / "weight.npy", means[:BASE] / NOISE**2)
    np.save(folder / "bias.npy", -(means[:BASE] ** 2).sum(1) / (2 * NOISE**2))


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


def has_bf16() -> bool:
    """Tell whether clinit trains in bfloat16 here."""
    from clinit.headtrain.precision import cpu_has_bf16

    return cpu_has_bf16()


def contenders(options: argparse.Namespace, avalanche: str | None) -> list[Contender]:
    """Return who takes part."""
    shared = {
        "tasks": TASKS,
        "buffer": 24_000,
        "batch": 256,
        "seed": options.seed,
        "lr": 1e-3,
        "weight_decay": 0.05,
        "threads": options.threads,
        "iterations": options.iterations,
        "block": options.block,
        "full_iterations": FULL_ITERATIONS,
        "eval_every": EVAL_EVERY,
    }
    short = {"iterations": min(25, options.iterations), "block": 25}
    precisions = ["float32", "bf16"] if has_bf16() else ["float32"]
    found = [
        Contender(f"products, {name}", "products", {**shared, "dtype": dtype})
        for name, dtype in (("float32", "float32"), ("bf16", "bfloat16"))
        if name in precisions
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


def protocol_s(contender: Contender) -> float:
    """Return what the whole protocol takes: from the times of a step and of an evaluation.

    The work of an evaluation is test rows times classes, of those seen.
    """
    points = FULL_ITERATIONS // EVAL_EVERY + 1
    edges = np.linspace(BASE, CLASSES, TASKS + 1)
    rows = TEST_BASE * BASE + TEST_NEW * (edges - BASE)
    share = float((rows[1:] * edges[1:]).sum() / (rows[-1] * edges[-1]))
    training = sum(FULL_ITERATIONS * contender.step_s(task) for task in contender.seconds)
    return training + points * share * float(contender.facts["evaluate_s"])


def paired(one: Contender, other: Contender) -> float:
    """Return a step of `one` in steps of `other`, over the rounds that both were in."""
    pairs = [
        pair
        for task in one.seconds
        for pair in zip(one.seconds[task], other.seconds[task], strict=False)
    ]
    mine, theirs = zip(*pairs, strict=True)
    return sum(mine) / sum(theirs)


HEADINGS = (
    *("contender", "steps/s", "head-steps/s", "x Avalanche", "of the products"),
    *("A_all %", "evaluation s", "protocol s"),
)


def rows_of(found: list[Contender]) -> list[list[str]]:
    """Return the lines of the table."""
    limits = {c.options["dtype"]: c for c in found if c.kind == "products"}
    peer = next((c for c in found if c.kind == "avalanche"), None)
    lines = []
    for contender in found:
        step = contender.step_s()
        low = contender.options.get("precision") == "bf16"
        limit = limits["bfloat16" if low else "float32"]
        line = [contender.name, f"{1 / step:,.1f}", f"{contender.heads / step:,.1f}"]
        if contender.kind == "products":
            lines.append([*line, "", f"{products_rate(contender):,.0f} GFLOP/s", "", "", ""])
            continue
        share = contender.heads / paired(contender, limit)
        line.append(f"{contender.heads / paired(contender, peer):.2f}" if peer else "")
        line += [f"{share:.0%}", accuracy(contender), f"{contender.facts['evaluate_s']:.2f}"]
        measured = contender.facts.get("protocol_s")
        protocol = f"{protocol_s(contender):,.0f}"
        lines.append([*line, f"{protocol} ({measured:,.0f} measured)" if measured else protocol])
    return lines


def accuracy(contender: Contender) -> str:
    """Return the accuracy; none where fewer steps were done."""
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


def show(lines: list[list[str]]) -> None:
    """Print the table."""
    table = Table(*HEADINGS, title="Heads")
    for column in table.columns[1:]:
        column.justify = "right"
    for line in lines:
        table.add_row(*line)
    CONSOLE.print(table)


READING = f"""\
* *products*: the two matrix products of a step and nothing else, in the same precision: the limit.
* *x Avalanche*, *of the products*: ratios of head-steps/s over the rounds that both were in.
* *A_all*: all 86,500 test rows after the last task; of a bank, its first head, which has the
  settings of the other contenders.
* *evaluation*: those rows once, all heads.
* *protocol*: {TASKS} x {FULL_ITERATIONS} steps and an evaluation every {EVAL_EVERY}, all heads;
  extrapolated from step and evaluation. Where it says so also measured, initialisation included.
"""


def report(lines: list[list[str]], options: argparse.Namespace) -> str:
    """Return the dated Markdown result."""
    versions = ", ".join(f"{name} {version(name)}" for name in ("torch", "numpy"))
    timed = "CPU seconds of the process" if options.threads == 1 else "wall seconds"
    head = [
        f"# Training heads, d = {DIM}, {CLASSES:,} classes, {datetime.date.today()}",
        "",
        f"{processor()}, {os.cpu_count()} cores, {options.threads} thread(s) a contender; load"
        f" {os.getloadavg()[0]:.1f} at the end. Times are {timed}. {versions}, {AVALANCHE}.",
        f"Command: `python {' '.join(sys.argv)}`.",
        "",
        f"{BASE:,} + {TASKS} x 73 classes, 128 new + 128 buffered rows a step, buffer 24,000 rows,"
        " AdamW with lr 1e-3 and weight decay 0.05, random new rows, cross entropy.",
        f"{options.iterations} steps a task, in blocks of {options.block} that the contenders do"
        " in turn; banks of more than 9 heads do 25 steps a task, so their accuracy is left out.",
        "",
        "| " + " | ".join(HEADINGS) + " |",
        "|" + "---|" * len(HEADINGS),
        *("| " + " | ".join(line) + " |" for line in lines),
        "",
        READING,
        "",
    ]
    return "\n".join(head)


def processor() -> str:
    """Return the name of the processor."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


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
    parser.add_argument(
        "--peers",
        type=Path,
        default=Path(__file__).with_name(".peers"),
        help="Folder of the environments of other packages.",
    )
    parser.add_argument("--no-avalanche", action="store_true")
    parser.add_argument("--no-protocol", action="store_true", help="Extrapolate it only.")
    options = parser.parse_args()
    avalanche = None if options.no_avalanche else peer_python(options.peers / "avalanche")
    found = contenders(options, avalanche)
    with tempfile.TemporaryDirectory() as folder:
        make_workload(Path(folder), options.per_class, options.seed)
        try:
            compete(found, Path(folder), options.threads)
            if not options.no_protocol:
                measure_protocol(found, Path(folder), options.threads)
        finally:
            for contender in found:
                contender.stop()
    lines = rows_of(found)
    show(lines)
    if options.out:
        machine = f"{os.cpu_count()}-core-{processor()}".lower().replace(" ", "-")
        path = options.out / f"heads_{machine}_{datetime.date.today()}.md"
        path.write_text(report(lines, options))


if __name__ == "__main__":
    main()

"""Which start of new rows is best: accuracies over few and many images, short and long training.

    python benchmarks/starts.py scenes BASE_CACHE NEW_CACHE --runs runs --out benchmarks/

Trains the heads of every cell (shots, iterations) over seeds, records each run below --runs (a
second call goes on where the first one stopped), and writes a table of the average incremental
accuracy: the mean over tasks of that on all classes seen, at the end of each task. Each start
is compared with the default over the same seeds: class orders, images and buffers are the same.
"""

from __future__ import annotations

import argparse
import datetime
import itertools
import os
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float
from rich.progress import track
from scipy.stats import t as student
from turns import CONSOLE, processor

import clinit
from clinit.headtrain.stream.source import Source
from clinit.headtrain.study import names_of

DEFAULT = "least-square, lambda auto"
STARTS: dict[str, dict[str, Any]] = {
    "random": {"init": "random"},
    "class-mean": {"init": "class-mean"},
    "norm": {"init": "least-square", "lam": 0.05, "scale": "norm"},
    "in-sample": {"init": "least-square", "lam": 0.05, "calibration": "in-sample"},
    "leave-one-out": {"init": "least-square", "lam": 0.05},
    DEFAULT: {"init": "least-square"},
    "fitted": {"init": "fitted"},
}
"""Settings by the name in the table. All but the first and the third are calibrated."""


@dataclass(frozen=True, slots=True)
class Cell:
    """One line of the table."""

    data: str
    shots: int | None
    """Training images per new class; None for all."""
    iterations: int


def numbers(text: str) -> list[int | None]:
    """Parse numbers with commas; `all` stands for None."""
    return [None if word == "all" else int(word) for word in text.split(",")]


def cells(options: argparse.Namespace) -> Iterator[Cell]:
    """Yield the lines of the table in their order."""
    shots, iterations = numbers(options.shots), numbers(options.iterations)
    for few, length in itertools.product(shots, iterations):
        yield Cell(options.name, few, length or 0)


def train(cell: Cell, base: Source, new: Source, options: argparse.Namespace) -> dict[str, Any]:
    """Train the heads of a cell; return accuracies (seeds,) and seconds of a start, by its name."""
    accuracy: dict[str, list[float]] = {name: [] for name in STARTS}
    seconds: dict[str, list[float]] = {name: [] for name in STARTS}
    for seed in range(options.seeds):
        shared = {
            "seed": seed,
            "shots": cell.shots,
            "tasks": options.tasks,
            "iterations": cell.iterations,
            "eval_every": max(cell.iterations, 1),
            "buffer": options.buffer,
            "device": options.device,
        }
        studies = [clinit.Study.of({**shared, **start}) for start in STARTS.values()]
        place = f"{cell.data}/shots-{cell.shots or 'all'}/iterations-{cell.iterations}/seed-{seed}"
        runs = clinit.train_heads(base, new, studies, out=options.runs / place)
        by_id = {run.record.info["id"]: run for run in runs.report.runs}
        ids = names_of([study.resolved() for study in studies])
        for name, run in zip(STARTS, map(by_id.__getitem__, ids), strict=True):
            accuracy[name].append(run.row()["average_incremental_accuracy"])
            tasks = run.record.info["tasks"]
            seconds[name].append(sum(task["initialisation"]["seconds"] for task in tasks))
    return {"accuracy": accuracy, "seconds": seconds}


def difference(values: list[float], reference: list[float]) -> tuple[float, float]:
    """Return the mean paired difference and half the width of its 95 % interval."""
    pairs: Float[np.ndarray, " seeds"] = np.subtract(values, reference)
    if len(pairs) < 2:
        return float(pairs.mean()), float("nan")
    error = pairs.std(ddof=1) / np.sqrt(len(pairs))
    return float(pairs.mean()), float(student.ppf(0.975, len(pairs) - 1) * error)


def line_of(cell: Cell, found: dict[str, Any]) -> str:
    """Return a line of the table: the default's accuracy, and what the others differ by."""
    reference = found["accuracy"][DEFAULT]
    words = [str(cell.shots or "all"), str(cell.iterations), f"{np.mean(reference):.1f}"]
    for name in STARTS:
        if name != DEFAULT:
            mean, half = difference(found["accuracy"][name], reference)
            words.append(f"{mean:+.1f} ± {half:.1f}")
    words.append(f"{np.mean(found['seconds'][DEFAULT]):.2f}")
    return "| " + " | ".join(words) + " |"


def main() -> None:
    """Train what is missing, and write the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("name", help="What the data are called in the table.")
    parser.add_argument("base", type=Path, help="Cache of the base classes.")
    parser.add_argument("new", type=Path, help="Cache of the new classes.")
    parser.add_argument("--runs", type=Path, required=True, help="Folder of the records.")
    parser.add_argument("--out", type=Path, help="Folder of the dated file; default: none.")
    parser.add_argument("--shots", default="1,2,5,10,20,50,all")
    parser.add_argument("--iterations", default="0,25,100,300,600")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--tasks", type=int, default=5)
    parser.add_argument("--buffer", type=int, default=24_000)
    parser.add_argument("--device", default="cpu")
    options = parser.parse_args()
    base, new = clinit.load_cache(options.base), clinit.load_cache(options.new)
    others = [name for name in STARTS if name != DEFAULT]
    headings = ["shots", "iterations", DEFAULT, *others, "seconds of the default's starts"]
    lines = [
        f"# Starts of new rows on {options.name}, {datetime.date.today()}",
        "",
        f"{processor()}, {os.cpu_count()} cores. torch {version('torch')}. {options.seeds} seeds,"
        f" {options.tasks} tasks, buffer {options.buffer:,}. Average incremental accuracy in %;"
        " of the others, the difference from the default with its 95 % interval over seeds.",
        "",
        "| " + " | ".join(headings) + " |",
        "|" + "---:|" * len(headings),
    ]
    for cell in track(list(cells(options)), "Cells", console=CONSOLE):
        lines.append(line_of(cell, train(cell, base, new, options)))
        CONSOLE.print(lines[-1])
    if options.out is not None:
        path = options.out / f"starts_{options.name}_{datetime.date.today()}.md"
        path.write_text("\n".join(lines) + "\n", encoding="utf-8")
        CONSOLE.print(f"Written to {path}")


if __name__ == "__main__":
    main()

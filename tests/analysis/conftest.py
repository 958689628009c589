"""Made records: what a training run would have written, with chosen curves."""

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from clinit.analysis.runs import Runs, runs_of
from clinit.headtrain.protocol.record.format import TABLES, RunRecord, write_record

MakeRun = Callable[..., RunRecord]
WriteRuns = Callable[..., Path]
BASE_CLASSES, NEW_CLASSES, IMAGES = 4, 3, 20
HEIGHT = {"random": 0.80, "class-mean": 0.82, "least-square": 0.86}


def frame(name: str, rows: Sequence[Sequence[Any]]) -> pl.DataFrame:
    return pl.DataFrame(rows, schema=dict(TABLES[name]), orient="row")


def learnt(init: str, iteration: int) -> float:
    """Share of new-task images that are right: exponential, from the head start."""
    height, start = HEIGHT[init], {"random": 0.0, "class-mean": 0.55, "least-square": 0.75}[init]
    return height - (height - start) * math.exp(-iteration / 90)


@pytest.fixture
def make_run() -> MakeRun:
    def make(
        init: str = "random",
        scale: str = "calibrated",
        *,
        tasks: int = 3,
        iterations: int = 200,
        every: int = 50,
        accuracy: Callable[[int, int], float] | None = None,
        loss_curve: Callable[[int, int], float] | None = None,
        untested_task: int | None = None,
        notes: Sequence[str] = (),
        **config: Any,
    ) -> RunRecord:
        scale = "none" if init == "random" else scale
        accuracy = accuracy or (lambda task, iteration: learnt(init, iteration))
        peak = {"random": 9.0, "class-mean": 2.4, "least-square": 1.1}[init]
        loss_curve = loss_curve or (lambda task, iteration: 0.35 + peak * math.exp(-iteration / 60))
        classes = [
            (row, f"class {row}", task, 30, 0 if task == untested_task else IMAGES)
            for row, task in enumerate(
                [0] * BASE_CLASSES + [t for t in range(1, tasks + 1) for _ in range(NEW_CLASSES)]
            )
        ]
        evaluations, points, steps, mistakes = [], [], [], []
        for task in range(1, tasks + 1):
            for iteration in sorted({*range(0, iterations, every), iterations}):
                elapsed = 0.01 * ((task - 1) * iterations + iteration) + 0.02 * task
                points.append((task, iteration, loss_curve(task, iteration), elapsed))
                for row, _, origin, _, total in classes:
                    if origin > task or total == 0:
                        continue
                    share = accuracy(task, iteration) if origin == task else 0.9 - 0.02 * task
                    # A negative share leaves nothing of the image added in every second class.
                    right = min(total, max(0, round(share * total) + row % 2))
                    evaluations.append((task, iteration, row, right, total, min(total, right + 1)))
                    if iteration == iterations:
                        other, wrong = origin + (origin == row), range(right, total)
                        mistakes += [(task, iteration, row, image, other) for image in wrong]
            losses = [loss_curve(task, step) for step in range(iterations)]
            steps += [(task, step, loss, loss, None) for step, loss in enumerate(losses)]
        info: Any = {
            "id": init if init == "random" else f"{init}-{scale}",
            "config": {
                "init": init,
                "scale": scale,
                "loss": "ce",
                "lam": 0.05,
                "class_mean": "raw",
                "bias": "write",
                "lr": 0.001,
                "weight_decay": 0.05,
                "tasks": tasks,
                "iterations": iterations,
                "buffer": 24_000,
                "batch_size": 256,
                "eval_every": every,
                "seed": 0,
                "head_width": "grow",
                "device": "cpu",
                **config,
            },
            "base": {"path": "caches/imagenet_mini", "fingerprint": {"weights": "a"}},
            "new": {"path": "caches/places50", "fingerprint": {"weights": "a"}},
            "tasks": [
                {
                    "task": task,
                    "classes": NEW_CLASSES,
                    "train_rows": 90,
                    "val_rows": NEW_CLASSES * IMAGES,
                    "buffer_rows": 120,
                    "buffer_classes": BASE_CLASSES,
                    "initialisation": {
                        **{"factor": 21.5, "shift": -0.25, "steps": 5, "seconds": 0.02},
                        **{"loss_before": 3.0, "loss_after": 1.0},
                    },
                }
                for task in range(1, tasks + 1)
            ],
            "notes": list(notes),
            "timings_s": {"total": 12.0},
            "bank_size": 3,
            "seconds": 4.0 if init == "random" else 4.5,
        }
        return RunRecord(
            path=None,
            info=info,
            classes=frame("classes", classes),
            steps=frame("steps", steps),
            evaluations=frame("evaluations", evaluations),
            points=frame("points", points),
            mistakes=frame("mistakes", mistakes),
        )

    return make


def seeded(make_run: MakeRun, seeds: int = 3, notes: Sequence[str] = ("",)) -> Runs:
    """Three initialisations, of each note; a later seed learns a little more."""
    height = {"random": 0.5, "class-mean": 0.7, "least-square": 0.9}
    return runs_of(
        [
            make_run(i, seed=s, note=note, accuracy=lambda t, _, h=height[i], s=s: h + 0.03 * s)
            for i in height
            for s in range(seeds)
            for note in notes
        ]
    )


@pytest.fixture
def write_runs(tmp_path: Path) -> Callable[..., Path]:
    """Write records below one folder, each under its id."""

    def write(*records: RunRecord, folder: str = "runs") -> Path:
        for index, record in enumerate(records):
            target = tmp_path / folder / record.info["id"]
            write_record(record, target if not target.exists() else Path(f"{target}-{index}"))
        return tmp_path / folder

    return write


@pytest.fixture
def three_inits(make_run: MakeRun, write_runs: Callable[..., Path]) -> Path:
    """A folder with the records of random, class-mean and least-square on one stream."""
    return write_runs(*map(make_run, ("random", "class-mean", "least-square")))

"""The stream of `benchmarks/heads.py`: Gaussian classes, and a head for the base classes."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

CLASSES, BASE, TASKS, DIM = 1365, 1000, 5, 384
FULL_ITERATIONS, EVAL_EVERY = 600, 50
TEST_BASE, TEST_NEW = 50, 100
"""Test rows per class: 86,500 in all."""
NOISE = 4.2
"""Standard deviation of a class around its mean; class means have standard deviation 1."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """Numbers of classes and of rows per class."""

    base: int = BASE
    new: int = CLASSES - BASE
    dim: int = DIM
    base_rows: int = 24
    """Training rows per class."""
    new_rows: int = 500
    base_tests: int = TEST_BASE
    new_tests: int = TEST_NEW


def make_workload(folder: Path, size: Size, seed: int) -> None:
    """Write Gaussian classes in float16, and a head for the base classes."""
    rng = np.random.default_rng(seed)
    classes = size.base + size.new
    means = rng.standard_normal((classes, size.dim), dtype=np.float32)

    def write(name: str, base: int, new: int) -> None:
        counts = np.where(np.arange(classes) < size.base, base, new)
        labels = np.repeat(np.arange(classes), counts)
        features = np.empty((len(labels), size.dim), dtype=np.float16)
        for start in range(0, len(labels), 10_000):
            part = slice(start, start + 10_000)
            noise = rng.standard_normal((len(labels[part]), size.dim), dtype=np.float32)
            features[part] = means[labels[part]] + NOISE * noise
        np.save(folder / f"{name}_x.npy", features)
        np.save(folder / f"{name}_y.npy", labels.astype(np.int64))

    write("train", size.base_rows, size.new_rows)
    write("test", size.base_tests, size.new_tests)
    known = means[: size.base]
    np.save(folder / "weight.npy", known / NOISE**2)
    np.save(folder / "bias.npy", -(known**2).sum(1) / (2 * NOISE**2))


class HeadsWorkload:
    """The stream: base classes with their head, then tasks of new classes, rows in float16."""

    def __init__(self, folder: Path, options: dict[str, Any]) -> None:
        def load(name: str) -> Any:
            return np.load(folder / f"{name}.npy", mmap_mode="c")  # one copy for all processes

        self.train_x, self.train_y = load("train_x"), load("train_y")
        self.test_x, self.test_y = load("test_x"), load("test_y")
        self.weight, self.bias = load("weight"), load("bias")
        self.base, self.dim = self.weight.shape
        self.classes = int(self.train_y.max()) + 1
        self.tasks, self.buffer = options["tasks"], options["buffer"]
        self.batch, self.seed = options["batch"], options["seed"]
        self.lr, self.decay = options["lr"], options["weight_decay"]

    @property
    def splits(self) -> list[tuple[int, int]]:
        """The first class of each task, and the class after the last."""
        edges = np.linspace(self.base, self.classes, self.tasks + 1).round().astype(int)
        return list(pairwise(edges.tolist()))


def sides(work: HeadsWorkload, test_rows: int | None = None) -> tuple[Any, Any, Any]:
    """Return base and new data as clinit's types, and the head; `test_rows` per class."""
    from clinit.extract.cache.features import FeatureSet
    from clinit.extract.cache.head import Head
    from clinit.headtrain.protocol.stream.source import Source

    def side(prefix: str, start: int, stop: int) -> Any:
        names = tuple(f"{prefix}{row}" for row in range(stop - start))

        def rows(x: Any, y: Any) -> Any:
            first, last = np.searchsorted(y, [start, stop])  # rows are sorted by class
            return FeatureSet(x[first:last], y[first:last] - start, names)

        train, val = rows(work.train_x, work.train_y), rows(work.test_x, work.test_y)
        if test_rows is not None:
            first = np.searchsorted(val.labels, np.arange(stop - start))
            few = (first[:, None] + np.arange(test_rows)).ravel()
            val = FeatureSet(val.features[few], val.labels[few], names)
        return Source(train, val, path=prefix)

    names = tuple(f"base{row}" for row in range(work.base))
    head = Head(work.weight.astype(np.float32), work.bias.astype(np.float32), names)
    return side("base", 0, work.base), side("new", work.base, work.classes), head

"""Made classes in two tasks after a base."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from clinit.headtrain.heads.closed.methods import Arrival, ClosedForm, Solution

DIM = 7
COUNTS = (9, 1, 0, 12, 5, 8, 6, 1, 10)
"""Rows of each class; those of the base are the first four."""
CENTRES = 2 * np.random.default_rng(3).normal(size=(len(COUNTS), DIM))
STOPS = (4, 6, 9)
"""Number of classes after the base and after each task."""


def rows_of(start: int, stop: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """The training rows of some classes, class after class."""
    labels = np.repeat(np.arange(len(COUNTS)), COUNTS)
    noise = np.random.default_rng(seed).normal(size=(len(labels), DIM))
    features = (CENTRES[labels] + noise * np.linspace(0.2, 2, DIM)).astype(np.float32)
    chosen = (labels >= start) & (labels < stop)
    return features[chosen], labels[chosen]


def queries(rows: int = 60) -> np.ndarray:
    return (np.random.default_rng(8).normal(size=(rows, DIM)) * 2.5).astype(np.float32)


def stream(
    form: ClosedForm,
    stops: Sequence[int] = STOPS,
    place: Callable[[np.ndarray], Any] = np.asarray,
    change: Callable[[np.ndarray], np.ndarray] = lambda features: features,
) -> list[Solution]:
    """Let a method learn the base and the tasks in turn."""
    solutions = []
    for task, (start, stop) in enumerate(zip((0, *stops), stops, strict=False)):
        features, labels = rows_of(start, stop)
        solutions.append(form.learn(Arrival(task, place(change(features)), labels, stop)))
    return solutions

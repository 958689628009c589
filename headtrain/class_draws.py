"""Rows drawn per class, and how a number of rows is shared among classes."""

from __future__ import annotations

import numpy as np
from jaxtyping import Bool, Int


def draw_per_class(
    labels: Int[np.ndarray, " rows"], quotas: Int[np.ndarray, " classes"], seed: int
) -> Bool[np.ndarray, " rows"]:
    """Mark rows drawn at random without replacement, as many per class as its quota.

    A class with fewer rows gives all of them. The same labels, quotas and seed give the same
    rows, and a larger quota of a class gives the rows of a smaller one and more.

    Args:
        labels: Class of each row, in [0, classes).
        quotas: Rows wanted per class; >= 0.
        seed: Seed of the draw.
    """
    counts = np.bincount(labels)
    order = np.random.default_rng(seed).permutation(len(labels))
    order = order[np.argsort(labels[order], kind="stable")]
    place_in_class = np.arange(len(labels)) - np.repeat(np.cumsum(counts) - counts, counts)
    marked = np.zeros(len(labels), dtype=bool)
    marked[order] = place_in_class < quotas[labels[order]]
    return marked


def held_out_rows(
    labels: Int[np.ndarray, " rows"], fraction: float, random: np.random.Generator
) -> Bool[np.ndarray, " rows"]:
    """Choose a fraction of the rows of each class: at least one, and never its last row."""
    held = np.zeros(len(labels), dtype=bool)
    # A permutation per class, not `draw_per_class`: recorded searches were made with these rows.
    order = np.argsort(labels, kind="stable")
    for rows in np.split(order, np.flatnonzero(np.diff(labels[order])) + 1):
        wanted = min(max(1, round(fraction * len(rows))), len(rows) - 1)
        held[random.permutation(rows)[: max(0, wanted)]] = True
    return held


def water_level(counts: Int[np.ndarray, " classes"], size: int) -> int:
    """Return how many rows every class can give without passing `size` rows in all.

    A class with fewer rows gives all that it has. The level is at most the largest count, and 0
    where not even one row per class fits.
    """
    low, high = 0, int(counts.max(initial=0))
    while low < high:
        middle = (low + high + 1) // 2
        if int(np.minimum(counts, middle).sum()) <= size:
            low = middle
        else:
            high = middle - 1
    return low

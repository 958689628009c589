"""Groups of rows that repeat each other: hold them out and thin them. `repeats.py` finds them.

This file also draws rows per class, and shares a number of rows among classes.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Mapping

import numpy as np
from jaxtyping import Bool, Float, Int

from clinit.words import number_of

Labels = Int[np.ndarray, " rows"]
"""The class of each row."""
Groups = Int[np.ndarray, " rows"]
"""The group of each row, equal for rows that repeat each other."""
Mask = Bool[np.ndarray, " rows"]
"""Whether each row is chosen."""
Shares = Float[np.ndarray, " rows"]
"""Weight of each row within its group."""
PerClass = Int[np.ndarray, " classes"]
"""An integer for each class, such as its number of rows."""

ALIKE, MOST_ALIKE = 8, 256
"""A start uses at most `ALIKE` rows of a group, or `MOST_ALIKE` divided by the number of groups of
its class, if that is more."""


def order_by_class(labels: Labels) -> Int[np.ndarray, " rows"]:
    """Return the rows sorted by class, and those of a class in their order."""
    # NumPy sorts numbers of 16 bits in linear time.
    small = len(labels) and labels.min() >= -(2**15) and labels.max() < 2**15
    return np.argsort(labels.astype(np.int16) if small else labels, kind="stable")


def by_class(labels: Labels) -> list[Int[np.ndarray, " _"]]:
    """Return the rows of each class with rows, in ascending order of classes."""
    order = order_by_class(labels)
    parts = np.split(order, np.flatnonzero(np.diff(labels[order])) + 1)
    return parts if len(labels) else []


def shares_of(groups: Groups | None) -> Shares | None:
    """Return weights with which each group counts as one row; None if `groups` is None."""
    if groups is None:
        return None
    _, places, sizes = np.unique(groups, return_inverse=True, return_counts=True)
    return np.asarray(1 / sizes[places])


def one_of_each(values: Labels, groups: Groups | None) -> Int[np.ndarray, " groups"]:
    """Return the values of one row of each group, or of all rows if `groups` is None."""
    return values if groups is None else values[np.unique(groups, return_index=True)[1]]


def repeating(groups: Groups) -> Groups | None:
    """Return `groups`, or None if no row repeats another."""
    alone = np.array_equal(groups, np.arange(len(groups)))  # as `find_groups` numbers them
    return None if alone or len(np.unique(groups)) == len(groups) else groups


def count_repeats(labels: Labels, groups: Groups | None) -> dict[str, int] | None:
    """Count the images that repeat each other, their groups and classes; None if there are none."""
    if groups is None or repeating(groups) is None:
        return None
    _, first, sizes = np.unique(groups, return_index=True, return_counts=True)
    several = sizes > 1
    classes = len(np.unique(labels[first[several]]))
    return {"images": int(sizes[several].sum()), "groups": int(several.sum()), "classes": classes}


def repeats_in_words(found: Mapping[str, int]) -> str:
    """Return what `count_repeats` found, in words."""
    images, classes = number_of(found["images"], "image"), number_of(found["classes"], "class")
    groups = number_of(found["groups"], "image")
    return f"{images} of {classes} are grouped as repeats and count as {groups}"


def thinned(labels: Labels, groups: Groups) -> Mask:
    """Mark the rows that a start uses: evenly spaced rows of large groups, and all other rows.

    The limit (`ALIKE`) bounds the cost: to leave a group out, a matrix with one row per marked row
    of the group is inverted.
    """
    _, places, sizes = np.unique(groups, return_inverse=True, return_counts=True)
    per_class = np.bincount(one_of_each(labels, groups), minlength=int(labels.max()) + 1)
    most = np.maximum(ALIKE, MOST_ALIKE // np.maximum(per_class, 1))[labels]
    size, order = sizes[places], np.argsort(places, kind="stable")
    rank = np.empty(len(labels), dtype=np.int64)
    rank[order] = np.arange(len(labels)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    return np.asarray((rank * most // size) != ((rank - 1) * most // size))


def draw_per_class(labels: Labels, quotas: PerClass, seed: int) -> Mask:
    """Mark rows drawn at random without replacement, as many per class as its quota.

    If a class has fewer rows than its quota, all are marked. Equal labels, quotas and seeds give
    equal rows; a larger quota of a class only adds rows.

    Args:
        labels: Class of each row, in [0, classes).
        quotas: Number of rows per class; >= 0.
        seed: Seed of the draw.
    """
    counts = np.bincount(labels)
    order = np.random.default_rng(seed).permutation(len(labels))
    order = order[order_by_class(labels[order])]
    place_in_class = np.arange(len(labels)) - np.repeat(np.cumsum(counts) - counts, counts)
    marked = np.zeros(len(labels), dtype=bool)
    marked[order] = place_in_class < quotas[labels[order]]
    return marked


def in_whole_groups(groups: Groups, choose: Callable[[np.ndarray], np.ndarray]) -> Mask:
    """Mark all rows of the groups whose first row is chosen.

    Whole groups are held out, because a held-out row must not repeat a kept row.

    Args:
        groups: The group of each row.
        choose: Takes the numbers of the first rows of groups, ascending, and returns some of them.
    """
    _, firsts, places = np.unique(groups, return_index=True, return_inverse=True)
    marked = np.zeros(len(groups), dtype=bool)
    marked[choose(np.sort(firsts))] = True
    return np.asarray(marked[firsts][places])


def held_out_rows(
    labels: Labels, groups: Groups, fraction: float, random: np.random.Generator
) -> Mask:
    """Choose a fraction of the groups of each class: at least one, but never all."""

    def choose(firsts: np.ndarray) -> np.ndarray:
        # One permutation per class, as in recorded searches; `draw_per_class` chooses other rows.
        held = []
        for places in by_class(labels[firsts]):
            wanted = min(max(1, round(fraction * len(places))), len(places) - 1)
            held.append(random.permutation(firsts[places])[:wanted])
        return np.concatenate(held)

    return in_whole_groups(groups, choose)


def water_level(counts: PerClass, size: int) -> int:
    """Return the largest number of rows per class with which all classes fit into `size` rows.

    A class with fewer rows contributes all of them. The level is at most the largest count, and 0
    if not even one row per class fits.
    """
    levels = range(1, int(counts.max(initial=0)) + 1)
    return bisect_right(levels, size, key=lambda level: int(np.minimum(counts, level).sum()))


def balanced_draw(labels: Labels, max_rows: int) -> Int[np.ndarray, " drawn"]:
    """Draw at most `max_rows` row numbers (at least one per class), the same number per class.

    If a class has fewer rows, all are drawn. The numbers ascend and depend on the labels only.
    """
    if len(labels) <= max_rows:
        return np.arange(len(labels))
    counts = np.bincount(labels)
    quotas = np.full(len(counts), max(1, water_level(counts, max_rows)))
    return np.flatnonzero(draw_per_class(labels, quotas, seed=0))

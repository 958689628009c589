"""Find rows that repeat another row of their class: copies, crops, frames of a video.

A set S of rows of a class is a group if it is isolated: all its rows are clearly nearer to each
other than any of them is to another row of the class,

    max_{i,j in S} |h_i - h_j|  <=  g_m  min_{i in S, k not in S} |h_i - h_k|,
    g_m = min(1 - 1/m, 0.8).

Two rows must be at least twice as near to each other as to any other row; the more rows a set has,
the less likely it is isolated by chance. Because exact copies must not increase m, m is not simply
the number of rows: it is the number of parts of the average-linkage tree of S, cut at two thirds of
its height. Isolated sets are searched among the nodes of the average-linkage tree of the class; the
largest sets are the groups. Different photographs hardly ever form such a set.

Crops can be as far from each other as different photographs, so that a single distance breaks the
condition. Therefore, if a quarter of all rows were found in groups, averages decide instead: a node
is a group if its height is at most g_m times the height at which it is joined with another node.

If S is the whole class, no other row can be compared. Its rows are then one group if the condition
is met with 2/3 of the median distance between groups in other classes, in place of the distance to
other rows. No absolute scale is used, because nearness differs between backbones and between
classes, as measured in `benchmarks/photographs_2-core-amd-epyc_2026-11-23.md`.

This file also draws rows per class, and shares a number of rows among classes.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
from jaxtyping import Bool, Float, Int
from scipy.cluster.hierarchy import linkage
from scipy.spatial.distance import squareform

from clinit.extract.cache.features import FeatureSet
from clinit.headtrain.array import FeatureRows, beside, namespace, take, to_numpy, widen

WIDEST = 0.8
"""Bound of g_m, reached by five rows."""
SAME_PART = WHOLE_CLASS = 2 / 3
OFTEN = 0.25
"""Share of rows in groups above which averages decide."""
MOST_ROWS = 2048
"""Maximum number of rows of a class that are searched together (32 MB of distances); larger classes
are cut into parts, in the order of their rows."""
ALIKE, MOST_ALIKE = 8, 256
"""A start uses at most `ALIKE` rows of a group, or `MOST_ALIKE` divided by the number of groups of
its class, if that is more."""
GLANCE_ABOVE, GLANCE_ROWS = 256, 32
"""A class of more than `GLANCE_ABOVE` rows is searched only if one of `GLANCE_ROWS` evenly spaced
rows may be in a group."""


def find_groups(
    features: FeatureRows, labels: Int[np.ndarray, " rows"]
) -> Int[np.ndarray, " rows"]:
    """Return the group of each row: equal numbers for rows of one class that repeat each other.

    The number of a group is the number of its first row, so that a row that repeats nothing has its
    own number, and no two classes share a number.

    Args:
        features: Of shape (rows, dim).
        labels: The class of each row.
    """
    trees: list[_Tree] = []
    for rows in by_class(labels):
        if len(rows) > 1 and (len(rows) <= GLANCE_ABOVE or _at_a_glance(features, rows)):
            parts = np.array_split(rows, -(-len(rows) // MOST_ROWS))
            trees += [_Tree.of(part, take(features, part)) for part in parts]
    groups = _grouped(trees, len(labels), by_averages=False)
    _, places, sizes = np.unique(groups, return_inverse=True, return_counts=True)
    if np.count_nonzero(sizes[places] > 1) < OFTEN * max(1, len(groups)):
        return groups
    return _grouped(trees, len(labels), by_averages=True)


_FOUND: WeakKeyDictionary[FeatureSet, np.ndarray] = WeakKeyDictionary()


def groups_of(data: FeatureSet) -> Int[np.ndarray, " rows"]:
    """Return the group of each row of a data set: recorded, or else found at the first call."""
    if data not in _FOUND:
        if data.groups is None:
            _FOUND[data] = find_groups(data.features, data.labels)
        else:
            pairs = np.stack([data.labels, data.groups], axis=1)
            _, first, places = np.unique(pairs, axis=0, return_index=True, return_inverse=True)
            _FOUND[data] = first[places.reshape(-1)]
    return _FOUND[data]


def _gap(rows: Any) -> Any:
    return np.minimum(1 - 1 / rows, WIDEST)


def _at_a_glance(features: FeatureRows, rows: Int[np.ndarray, " rows"]) -> bool:
    """Return whether the class may contain a group, judging by a few of its rows.

    For a row of a group of m rows, the m - 1 nearest rows are at most g_m times as far as the next.
    """
    some = take(features, rows[np.linspace(0, len(rows) - 1, GLANCE_ROWS).astype(np.int64)])
    parts = np.array_split(rows, -(-len(rows) // MOST_ROWS))
    near = np.concatenate(
        [_distances(some, take(features, part), exactly=False) for part in parts], axis=1
    )
    near.sort(axis=1)
    bound = _gap(np.arange(2, len(rows)))
    return bool((near[:, 1:-1] <= bound * near[:, 2:]).any())


@dataclass(frozen=True, slots=True, eq=False)
class _Tree:
    """Groups within a class: nodes of its tree, found by distances (first) and by averages."""

    rows: Int[np.ndarray, " n"]
    sets: tuple[list[Int[np.ndarray, " _"]], list[Int[np.ndarray, " _"]]]
    """Ascending: if two sets share rows, the later set contains the earlier set."""
    usual: tuple[float, float]
    """Median distance of rows in different sets; NaN if all rows are in one set."""
    needed: tuple[float, float]
    """Least distance of other rows at which the whole class would be a group."""

    @classmethod
    def of(cls, rows: Int[np.ndarray, " n"], features: Any) -> _Tree:
        n, distances = len(rows), _distances(features, features)
        tree = linkage(squareform(distances, checks=False), "average")
        joined, height, size = tree[:, :2].astype(np.int64), tree[:, 2], tree[:, 3]
        joined_at = np.full(2 * n - 1, np.inf)
        joined_at[joined] = height[:, None]
        sets: tuple[list[np.ndarray], list[np.ndarray]] = ([], [])
        needed = (np.inf, np.inf)
        for node in np.flatnonzero(height <= _gap(size) * joined_at[n:]).tolist():
            inside, nodes, left = [], [], [n + node]
            while left:
                if (next_one := left.pop()) < n:
                    inside.append(next_one)
                else:
                    nodes.append(next_one - n)
                    left += joined[next_one - n].tolist()
            parts = 1 + int((height[nodes] > SAME_PART * height[node]).sum())
            gap, here = _gap(max(2, parts)), np.array(inside)
            width = distances[np.ix_(here, here)].max()
            if node == n - 2:
                needed = (width / gap, height[node] / gap)
                continue
            others = np.delete(distances[here], here, axis=1)
            if width <= gap * others.min():
                sets[0].append(here)
            if height[node] <= gap * joined_at[n + node]:
                sets[1].append(here)
        return cls(rows, sets, (_usual(distances, sets[0]), _usual(distances, sets[1])), needed)


def _usual(distances: Float[np.ndarray, "n n"], sets: list[Int[np.ndarray, " _"]]) -> float:
    number = np.arange(len(distances))
    for here in sets:
        number[here] = here.min()
    differ = distances[number[:, None] != number[None, :]]
    return float(np.median(differ)) if len(differ) else np.nan


def _grouped(trees: list[_Tree], count: int, *, by_averages: bool) -> Int[np.ndarray, " rows"]:
    """Return the groups of all rows: the largest sets, and whole classes."""
    groups, which = np.arange(count), int(by_averages)
    usual = np.array([tree.usual[which] for tree in trees])
    for index, tree in enumerate(trees):
        for inside in tree.sets[which]:
            groups[tree.rows[inside]] = tree.rows[inside].min()
        known = np.delete(usual, index)
        known = known[np.isfinite(known)]
        if tree.needed[which] <= (WHOLE_CLASS * np.median(known) if len(known) else 0.0):
            groups[tree.rows] = tree.rows[0]
    return groups


def _distances(one: Any, other: Any, *, exactly: bool = True) -> Float[np.ndarray, "rows others"]:
    """Return distances; 0 if below the rounding of the stored dtype, or if not a number."""
    xp = namespace(one)
    rounding = float(xp.finfo(one.dtype).eps)
    wide = xp.float64 if exactly or one.dtype == xp.float64 else xp.float32
    one, other = (xp.astype(widen(rows), wide, copy=False) for rows in (one, other))
    with np.errstate(invalid="ignore", over="ignore"):  # infinite or NaN rows are refused later
        rounding *= float(xp.max(xp.linalg.vector_norm(one, axis=1)))
        centre = xp.mean(other, axis=0)  # far from 0, the difference of squares cancels
        one, other = one - centre, other - centre
        squares = xp.sum(one**2, axis=1)[:, None] + xp.sum(other**2, axis=1)[None, :]
        distances = xp.sqrt(xp.maximum(squares - 2 * one @ other.T, beside(one, np.zeros(()))))
        return to_numpy(xp.where(distances > rounding, distances, 0.0))


def by_class(labels: Int[np.ndarray, " rows"]) -> list[Int[np.ndarray, " _"]]:
    """Return the rows of each class with rows, in ascending order of classes."""
    order = np.argsort(labels, kind="stable")
    parts = np.split(order, np.flatnonzero(np.diff(labels[order])) + 1)
    return parts if len(labels) else []


def shares_of(groups: Int[np.ndarray, " rows"] | None) -> Float[np.ndarray, " rows"] | None:
    """Return weights with which each group counts as one row; None if `groups` is None."""
    if groups is None:
        return None
    _, places, sizes = np.unique(groups, return_inverse=True, return_counts=True)
    return np.asarray(1 / sizes[places])


def one_of_each(
    values: Int[np.ndarray, " rows"], groups: Int[np.ndarray, " rows"] | None
) -> Int[np.ndarray, " groups"]:
    """Return the values of one row of each group, or of all rows if `groups` is None."""
    return values if groups is None else values[np.unique(groups, return_index=True)[1]]


def repeating(groups: Int[np.ndarray, " rows"]) -> Int[np.ndarray, " rows"] | None:
    """Return `groups`, or None if no row repeats another."""
    return None if len(np.unique(groups)) == len(groups) else groups


def thinned(
    labels: Int[np.ndarray, " rows"], groups: Int[np.ndarray, " rows"]
) -> Bool[np.ndarray, " rows"]:
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


def draw_per_class(
    labels: Int[np.ndarray, " rows"], quotas: Int[np.ndarray, " classes"], seed: int
) -> Bool[np.ndarray, " rows"]:
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
    order = order[np.argsort(labels[order], kind="stable")]
    place_in_class = np.arange(len(labels)) - np.repeat(np.cumsum(counts) - counts, counts)
    marked = np.zeros(len(labels), dtype=bool)
    marked[order] = place_in_class < quotas[labels[order]]
    return marked


def in_whole_groups(
    groups: Int[np.ndarray, " rows"],
    choose: Callable[[Int[np.ndarray, " firsts"]], Int[np.ndarray, " chosen"]],
) -> Bool[np.ndarray, " rows"]:
    """Mark all rows of the groups whose first row is chosen.

    Whole groups are held out, because a held-out row must not repeat a kept row.

    Args:
        groups: The group of each row.
        choose: Takes the numbers of the first rows of groups, ascending, and returns some of them.
    """
    _, firsts, places = np.unique(groups, return_index=True, return_inverse=True)
    marked = np.zeros(len(groups), dtype=bool)
    marked[choose(np.sort(firsts))] = True
    whole: np.ndarray = marked[firsts][places]
    return whole


def held_out_rows(
    labels: Int[np.ndarray, " rows"],
    groups: Int[np.ndarray, " rows"],
    fraction: float,
    random: np.random.Generator,
) -> Bool[np.ndarray, " rows"]:
    """Choose a fraction of the groups of each class: at least one, but never all."""

    def choose(firsts: Int[np.ndarray, " firsts"]) -> Int[np.ndarray, " chosen"]:
        # One permutation per class, as in recorded searches; `draw_per_class` chooses other rows.
        held = []
        for places in by_class(labels[firsts]):
            wanted = min(max(1, round(fraction * len(places))), len(places) - 1)
            held.append(random.permutation(firsts[places])[:wanted])
        return np.concatenate(held)

    return in_whole_groups(groups, choose)


def water_level(counts: Int[np.ndarray, " classes"], size: int) -> int:
    """Return the largest number of rows per class with which all classes fit into `size` rows.

    A class with fewer rows contributes all of them. The level is at most the largest count, and 0
    if not even one row per class fits.
    """
    levels = range(1, int(counts.max(initial=0)) + 1)
    return bisect_right(levels, size, key=lambda level: int(np.minimum(counts, level).sum()))

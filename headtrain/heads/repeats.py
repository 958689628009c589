"""Find rows that repeat another row of their class: copies, crops, frames of a video.

Rows of a class repeat each other if they are nearer than distinct rows are by chance. How near
distinct rows are is known from rows that cannot repeat each other: rows of different classes, each
minus the mean of its class. Let e_i = (h_i - mean) sqrt(n / (n - 1)), and F the distribution of
|e_i - e_j|^2 over classes, fitted by a gamma distribution with the same 5 % point and median (an
isotropic normal distribution in k dimensions has the shape k / 2). If distinct rows of a class were
as far from each other, the chance that any of N rows of the set has m - 1 of the n - 1 others of
its class within the distance F^-1(p) would be at most N ((n - 1) p)^(m - 1). A node of the
average-linkage tree of a class is a group if its height is at most the distance at which this
chance is `CHANCE`,

    F^-1(p),  p = (CHANCE / N)^(1 / (m - 1)) / (n - 1),

and at most `WIDEST` times the median distance. Because exact copies must not increase m, m is the
number of parts of the node, cut at two thirds of its height; clusters of distinct rows do occur, so
that more than `MOST_PARTS` parts are no further evidence. Equal rows are always a group.

Classes differ in spread. If at least as many rows of the class, or three, are outside the node,
their mean distance from the node replaces the median, if it is smaller. Otherwise (a whole class,
or all but one or two rows) the class may just be narrow, and the median is divided by the largest
factor by which spreads of as many classes differ by chance (t distribution of their logarithms).
With a single class, F belongs to |e_i + e_j|, and only equal rows can be the whole class.

Because a class of few images with many repeats varies less about its mean, the median is that of
the means of parts, cut at two thirds of the largest height at which several rows are joined with
several others, if it is larger; F keeps its shape. Every number is a quantile or a mean over many
rows, so that a row more or less hardly changes other classes.

Distinct clusters of rows in every class, as narrow as crops, cannot be told from crops. Measured in
`benchmarks/groups_2026-11-26.md`.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import compress
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
from jaxtyping import Bool, Float, Int
from scipy.special import gammaincinv, stdtrit
from threadpoolctl import threadpool_limits

from clinit.extract.cache.features import FeatureSet
from clinit.headtrain.heads.array import FeatureRows, beside, namespace, take, to_numpy, widen
from clinit.headtrain.heads.groups import by_class
from clinit.machine import cpu_count

CHANCE = 0.05
"""Chance that any distinct rows of a set are taken for repeats, if they are spread alike."""
WIDEST = 0.65
SAME_PART, MOST_PARTS = 2 / 3, 3
LOW, LARGEST_SHAPE = 0.05, 5000.0
MOST_ROWS = 2048
"""Maximum number of rows of a class that are searched together (32 MB of distances); larger classes
are cut into parts, in the order of their rows."""
Sampled = Int[np.ndarray, " sampled"]
SAMPLED = 1024
"""Number of rows, evenly spaced, from which the distances of distinct rows are known."""
GLANCE_ABOVE, GLANCE_ROWS = 256, 32
"""A class of more than `GLANCE_ABOVE` rows is searched only if one of `GLANCE_ROWS` evenly spaced
rows may be in a group."""


def find_groups(features: FeatureRows, labels: Int[np.ndarray, " n"]) -> Int[np.ndarray, " n"]:
    """Return the group of each row: equal numbers for rows of one class that repeat each other.

    The number of a group is the number of its first row, so that a row that repeats nothing has its
    own number, and no two classes share a number.

    Args:
        features: Of shape (rows, dim).
        labels: The class of each row.
    """
    groups, classes = np.arange(len(labels)), by_class(labels)
    rows = np.concatenate([*_spaced(classes), np.empty(0, dtype=np.int64)])
    drawn = to_numpy(widen(take(features, rows))).astype(np.float64)
    spread = _Spread.of(drawn, labels[rows], rows, len(labels))

    def is_searched(rows_of: Int[np.ndarray, " _"]) -> bool:
        return len(rows_of) <= GLANCE_ABOVE or _at_a_glance(features, rows_of, spread)

    # NumPy copies and sums with one thread, and products this small are slower with several; CuPy's
    # stream belongs to this thread.
    with ThreadPoolExecutor(cpu_count()) as pool, threadpool_limits(1, "blas"):
        look = pool.map if isinstance(features, np.ndarray) else map
        searched = list(look(is_searched, classes))
    trees: list[_Tree] = []
    for rows_of in compress(classes, searched):
        parts = np.array_split(rows_of, -(-len(rows_of) // MOST_ROWS))
        trees += [_Tree.of(part, take(features, part)) for part in parts if len(part) > 1]
    apart = np.arange(len(labels))
    for inside in (rows_of for tree in trees for rows_of in tree.parts()):
        apart[inside] = inside.min()
    spread = _Spread.of(drawn, labels[rows], apart[rows], len(labels))
    for inside in (rows_of for tree in trees for rows_of in tree.groups(spread)):
        groups[inside] = inside.min()
    return groups


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


def joined(parts: Sequence[FeatureSet], class_names: tuple[str, ...]) -> FeatureSet:
    """Return `FeatureSet.joined` with groups if any set has some; in others, they are found."""
    if any(part.groups is not None for part in parts):
        parts = [replace(part, groups=groups_of(part)) for part in parts]
    return FeatureSet.joined(parts, class_names)


def _spaced(classes: list[Int[np.ndarray, " _"]]) -> list[Int[np.ndarray, " _"]]:
    """Return evenly spaced rows of each class with two rows: about `SAMPLED` in all."""
    several = [rows for rows in classes if len(rows) > 1]
    several = several[:: -(-2 * len(several) // SAMPLED) or 1]
    most = max(2, SAMPLED // max(1, len(several)))
    return [r[np.linspace(0, len(r) - 1, min(most, len(r)), dtype=int)] for r in several]


@dataclass(frozen=True, slots=True)
class _Spread:
    """How far distinct rows of a class are from each other."""

    usual: float
    """Median distance between the parts of classes; 0 if nothing is known."""
    shape: float
    """Shape of the gamma distribution of squared distances: half the number of dimensions."""
    narrow: float
    """Bound of the ratio between a spread of a class and the usual one, by chance; in [0, 1]."""
    rows: int
    """N."""

    @classmethod
    def of(
        cls, features: Float[np.ndarray, "sampled dim"], labels: Sampled, apart: Sampled, rows: int
    ) -> _Spread:
        residuals = _residuals(features, labels, np.arange(len(labels)))
        squares = _squares_between(residuals)
        wide = _squares_between(_residuals(features, labels, apart))
        if not len(wide) or not 0 < (usual := float(np.median(squares))) < np.inf:
            return cls(0.0, LARGEST_SHAPE, 0.0, rows)
        spreads = np.array([np.sqrt((part**2).sum(axis=1).mean()) for part in residuals])
        near, count = float(np.quantile(squares, LOW)) / usual, len(spreads)
        logs = np.log(np.maximum(spreads, 1e-9 * np.sqrt(usual)))
        deviation = 1.4826 * float(np.median(np.abs(logs - np.median(logs))))
        narrow = 0.0 if count < 2 else np.exp(-stdtrit(count - 1, 1 - CHANCE / count) * deviation)
        return cls(max(usual, float(np.median(wide))) ** 0.5, _shape(near), float(narrow), rows)

    def bounds(self, count: int) -> Float[np.ndarray, " parts"]:
        """Return how near rows of a class of `count` rows must be, by their number of parts."""
        others = np.maximum(1, np.arange(MOST_PARTS + 1) - 1)
        chance = (CHANCE / max(1, self.rows)) ** (1 / others) / max(1, count - 1)
        near = np.sqrt(gammaincinv(self.shape, chance) / gammaincinv(self.shape, 0.5))
        return np.asarray(np.minimum(WIDEST, near))


def _residuals(
    features: Float[np.ndarray, "sampled dim"], labels: Sampled, groups: Sampled
) -> list[Float[np.ndarray, "_ dim"]]:
    """Return, for each class of two groups, the means of its groups minus the mean of the class."""
    _, first, places = np.unique(groups, return_index=True, return_inverse=True)
    means = np.zeros((len(first), features.shape[1]))
    with np.errstate(invalid="ignore", over="ignore"):  # such rows are refused later
        np.add.at(means, places, features / np.bincount(places)[places, None])
        parts = [means[part] for part in by_class(labels[first]) if len(part) > 1]
        return [(part - part.mean(axis=0)) * (len(part) / (len(part) - 1)) ** 0.5 for part in parts]


def _squares_between(parts: list[Float[np.ndarray, "_ dim"]]) -> Float[np.ndarray, " pairs"]:
    """Return squared distances between residuals of different classes."""
    if not parts:
        return np.empty(0)
    one, sign = np.concatenate(parts), 1.0 if len(parts) == 1 else -1.0
    number = np.repeat(np.arange(len(parts)), [*map(len, parts)])
    if len(parts) == 1:
        number = np.arange(len(one))
    norms = (one**2).sum(axis=1)
    squares = norms[:, None] + norms[None, :] + sign * 2 * one @ one.T
    return np.asarray(np.maximum(squares, 0)[number[:, None] < number[None, :]])


def _shape(near: float) -> float:
    """Return the shape of a gamma distribution whose 5 % point is `near` times its median."""
    from scipy.optimize import brentq  # it takes 0.4 s, which predictions need not wait for

    def excess(log: float) -> float:
        shape = np.exp(log)
        return float(gammaincinv(shape, LOW) / gammaincinv(shape, 0.5)) - near

    low, high = np.log(0.05), np.log(LARGEST_SHAPE)
    if excess(low) >= 0 or excess(high) <= 0:
        return float(np.exp(low if excess(low) >= 0 else high))
    return float(np.exp(brentq(excess, low, high, xtol=1e-6)))


def _at_a_glance(features: FeatureRows, rows: Int[np.ndarray, " rows"], spread: _Spread) -> bool:
    """Return whether the class may contain a group, judging by a few of its rows."""
    places = np.linspace(0, len(rows) - 1, GLANCE_ROWS).astype(np.int64)
    some, parts = take(features, rows[places]), np.array_split(rows, -(-len(rows) // MOST_ROWS))
    near = np.concatenate(
        [_distances(some, take(features, part), exactly=False) for part in parts], axis=1
    )
    near[np.arange(len(places)), places] = np.inf
    return bool((near <= spread.usual * spread.bounds(min(len(rows), MOST_ROWS)).max()).any())


@dataclass(frozen=True, slots=True, eq=False)
class _Tree:
    """The average-linkage tree of the rows of a class; a node is a slice of the ordered rows."""

    rows: Int[np.ndarray, " n"]
    """In the order of the leaves."""
    start: Int[np.ndarray, " nodes"]
    size: Int[np.ndarray, " nodes"]
    height: Float[np.ndarray, " nodes"]
    """Ascending."""
    gaps: Float[np.ndarray, " nodes"]
    """Height at which each leaf is joined to the next in the order."""
    split: float
    """Largest height at which a node is joined with as many rows, or three; 0 if there is none."""
    outside: Float[np.ndarray, " nodes"]
    """Mean distance between rows of the node and the other rows; infinite if there are none."""

    @classmethod
    def of(cls, rows: Int[np.ndarray, " n"], features: Any) -> _Tree:
        from scipy.cluster.hierarchy import leaves_list, linkage
        from scipy.spatial.distance import squareform

        n, distances = len(rows), _distances(features, features)
        tree = linkage(squareform(distances, checks=False), "average")
        order, height = leaves_list(tree), tree[:, 2]
        size = np.concatenate([np.ones(n), tree[:, 3]]).astype(np.int64)
        start, total = np.empty(2 * n - 1, dtype=np.int64), np.zeros(2 * n - 1)
        start[order], total[:n] = np.arange(n), distances.sum(axis=1)
        gaps, split = np.empty(n - 1), 0.0
        for node, (one, other) in enumerate(tree[:, :2].astype(np.int64).tolist()):
            start[n + node] = min(start[one], start[other])
            gaps[max(start[one], start[other]) - 1] = height[node]
            # Distances to rows outside: all of both parts, without the distances between them.
            between = height[node] * size[one] * size[other]
            if min(size[one], size[other]) >= min(3, max(2, size[one], size[other])):
                split = float(height[node])
            total[n + node] = total[one] + total[other] - 2 * between
        start, size = start[n:], size[n:]
        pairs = size * (n - size)
        outside = np.where(pairs > 0, total[n:] / np.maximum(pairs, 1), np.inf)
        return cls(rows[order], start, size, height, gaps, split, outside)

    @property
    def is_known(self) -> Bool[np.ndarray, " nodes"]:
        """Whether enough rows are outside each node to know how far distinct rows are."""
        return np.asarray(len(self.rows) - self.size >= np.minimum(3, self.size))

    def parts(self) -> list[Int[np.ndarray, " _"]]:
        """Return the rows of all nodes up to two thirds of the height of a true split."""
        near = np.flatnonzero(self.is_known & (self.height <= SAME_PART * self.split))
        return [self.rows[self.start[n] : self.start[n] + self.size[n]] for n in near]

    def groups(self, spread: _Spread) -> list[Int[np.ndarray, " _"]]:
        """Return the rows of all nodes that are groups; a later one may contain earlier ones."""
        bounds, found = spread.bounds(len(self.rows)), []
        usual = spread.usual * np.where(self.is_known, 1.0, spread.narrow)
        usual = np.where(self.is_known, np.minimum(usual, self.outside), usual)
        for node in np.flatnonzero(self.height <= bounds.max() * usual):
            first, stop = self.start[node], self.start[node] + self.size[node]
            gaps = self.gaps[first : stop - 1]
            parts = 1 + np.count_nonzero(gaps > SAME_PART * self.height[node])
            if self.height[node] <= bounds[min(int(parts), MOST_PARTS)] * usual[node]:
                found.append(self.rows[first:stop])
        return found


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

"""Counts, sums and second moment of features, a class at a time, in one pass.

With z = (h, 1) the extended feature, the least-square head, LDA, the neural-collapse
metrics and D_LS are functions of

    n_c,    S_c = sum_{i in c} (h_i - a),    G = sum_i w_{y_i} (h_i - a)(h_i - a)^T

for any fixed shift a. The weights w_c of a row define "Ave": 1 / (C n_c) for
averages over classes of averages over rows (`class`), 1 / N for averages over rows
(`sample`). The weights depend only on the labels, so they are fixed before the first feature is
read, and statistics of equal weights add up over blocks, shards and hosts.

The shift is for accuracy: E[h h^T] - E[h] E[h]^T cancels when the mean is large, and
a shift anywhere near the mean removes that (T. F. Chan, G. H. Golub, R. J. LeVeque,
"Algorithms for computing the sample variance: analysis and recommendations", The American
Statistician 37(3), 1983). Statistics of different shifts add exactly:

    G' = G + s d^T + d s^T + w d d^T,    d = a - a',    s = sum_c w_c S_c,    w = sum_c w_c n_c.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

import numpy as np
from jaxtyping import Float, Int, Num

from clinit.errors import StatisticsError
from clinit.headtrain.heads.array import FeatureRows, beside, float64_of, namespace, take, to_numpy
from clinit.headtrain.heads.groups import PerClass, one_of_each, order_by_class, shares_of
from clinit.headtrain.heads.statistics.moments import Block, MomentSums, cut, symmetric

Weighting = Literal["class", "sample"]


@dataclass(frozen=True, slots=True, eq=False)
class ClassStatistics:
    """Class-wise moments of a set of rows, or of a part of it. Memory O(d^2 + C d)."""

    totals: PerClass
    """Number of rows of each class in the whole set; a class without rows does not count."""
    weighting: Weighting
    """`class`: every class with rows weighs the same. `sample`: every row weighs the same."""
    counts: Num[np.ndarray, " classes"]
    """Number of rows of each class read so far; a repeated row counts as its share. Equal to
    `totals`, up to rounding, once all parts are merged."""
    shift: Float[Any, " dim"]
    """Vector that is subtracted from the features before they are summed."""
    sums: Float[Any, "classes dim"]
    """Sums of the shifted features of each class."""
    gram: Float[Any, "dim dim"]
    """Weighted sum of the outer products of the shifted features."""

    @classmethod
    def of(
        cls,
        features: FeatureRows,
        labels: Int[Any, " rows"],
        *,
        num_classes: int | None = None,
        weighting: Weighting = "class",
        totals: PerClass | None = None,
        shift: Float[Any, " dim"] | None = None,
        groups: Int[np.ndarray, " rows"] | None = None,
    ) -> ClassStatistics:
        """Return the statistics of NumPy or CuPy arrays, or of rows that are streamed to a GPU.

        Args:
            features: Rows of shape (rows, dim), in float16, float32 or float64; widened to float64
                block by block.
            labels: In [0, num_classes).
            num_classes: Default: the number in `totals`, or the largest label + 1.
            weighting: Kind of average: over classes of averages, or over rows.
            totals: Number of rows of each class in the whole set, if `features` are a part of it.
            shift: Default: the mean of at most 4,096 of the rows, evenly spaced.
            groups: As from `find_groups`: a group of rows counts as one row, also in `totals`.
                None: no row repeats another.
        """
        labels = to_numpy(labels)
        if features.shape[0] != len(labels):
            raise ValueError(f"{features.shape[0]} features for {len(labels)} labels")
        if totals is None:
            totals = count(one_of_each(labels, groups), num_classes)
        if shift is None:
            shift = _mean(take(features, slice(None, None, max(1, len(labels) // 4096))))
        # Sorted by class, blocks have few and long segments, and need no sort of their own.
        is_sorted = bool((labels[1:] >= labels[:-1]).all())
        order = None if is_sorted else order_by_class(labels)
        blocks = cut(features, labels, order, shares_of(groups))
        return cls.of_blocks(blocks, totals, features.shape[1], weighting=weighting, shift=shift)

    @classmethod
    def of_blocks(
        cls,
        blocks: Iterable[Block],
        totals: PerClass,
        dim: int,
        *,
        weighting: Weighting = "class",
        shift: Float[Any, " dim"] | None = None,
    ) -> ClassStatistics:
        """Return the statistics of rows that come in blocks, as from a feature cache.

        Args:
            blocks: Features, labels and, if rows repeat each other, the weights of rows; only one
                block is in memory at a time. May be empty.
            totals: Number of rows of each class in the whole set, from the labels.
            dim: Width of the features.
            weighting: Kind of average: over classes of averages, or over rows.
            shift: Default: the mean of the first block.

        Raises:
            StatisticsError: If a feature is not finite.
        """
        weights = row_weights(totals, weighting)
        moments: MomentSums | None = None
        for features, labels, *shares in blocks:
            if moments is None:
                shift = _mean(features) if shift is None else shift
                moments = MomentSums.about(weights, float64_of(beside(features, shift)))
            for part in cut(features, to_numpy(labels), None, *shares):
                moments.add(*part)
        if moments is None:
            moments = MomentSums.about(weights, np.zeros(dim) if shift is None else shift)
        xp = namespace(moments.lower)
        if not bool(xp.all(xp.isfinite(moments.lower))):
            raise StatisticsError(
                "the features contain values that are not finite (NaN or infinity)",
                remedy="Extract them again in float32: float16 ends at 65,504.",
            )
        return cls(
            totals=np.asarray(totals, dtype=np.int64),
            weighting=weighting,
            counts=moments.counts,
            shift=moments.shift,
            sums=moments.sums,
            gram=symmetric(moments.lower),
        )

    def __add__(self, other: ClassStatistics) -> ClassStatistics:
        """Merge the statistics of two disjoint parts of one set, both summed with its `totals`."""
        assert self.weighting == other.weighting
        assert np.array_equal(self.totals, other.totals)
        other = other.with_shift(self.shift)
        counts, sums = self.counts + other.counts, self.sums + other.sums
        merged = replace(self, counts=counts, sums=sums, gram=self.gram + other.gram)
        assert (merged.counts < merged.totals + 0.5).all()  # shares are rounded
        return merged

    def merged(self, other: ClassStatistics) -> ClassStatistics:
        """Return the statistics of two whole, disjoint sets of rows together.

        Both number their classes alike; either may have further classes.

        Raises:
            ValueError: If both have rows of a class whose average weighs as much as any other:
                `class` weights of rows that were summed cannot change.
        """
        size = max(self.num_classes, other.num_classes)
        totals = np.zeros((2, size), dtype=np.int64)
        totals[0, : self.num_classes], totals[1, : other.num_classes] = self.totals, other.totals
        if self.weighting == "class" and (totals > 0).all(axis=0).any():
            raise ValueError("weighting is 'class', but a class has rows in both sets")
        masses = ((totals > 0) if self.weighting == "class" else totals).sum(axis=1)
        one, two = masses / max(1, masses.sum())
        other, xp = other.with_shift(self.shift), namespace(self.gram)

        def padded(each: ClassStatistics) -> Any:
            rows = beside(self.gram, np.zeros((size - each.num_classes, self.dim)))
            return xp.concat([each.sums, rows])

        totals, sums = totals.sum(axis=0), padded(self) + padded(other)
        gram = one * self.gram + two * other.gram
        return replace(self, totals=totals, counts=totals, sums=sums, gram=gram)

    def within(self, totals: Int[np.ndarray, " more"]) -> ClassStatistics:
        """Return the statistics of the same rows, as a part of a set with more classes.

        The larger set has no further rows of the present classes, so that all weights change by one
        factor: the ratio of the numbers of classes, or of rows.

        Args:
            totals: Number of rows of each class in the larger set; unchanged for present classes.
        """
        known, added = np.flatnonzero(self.totals), len(totals) - len(self.totals)
        assert np.array_equal(totals[known], self.totals[known])
        factor = 1.0
        if len(known):
            first = known[0]
            factor = float(row_weights(totals, self.weighting)[first] / self.weights[first])
        none = beside(self.gram, np.zeros((added, self.dim)))
        return replace(
            self,
            totals=np.asarray(totals, dtype=np.int64),
            counts=np.concatenate([self.counts, np.zeros(added, dtype=np.int64)]),
            sums=namespace(self.gram).concat([self.sums, none]),
            gram=self.gram * factor,
        )

    def with_shift(self, shift: Float[Any, " dim"]) -> ClassStatistics:
        """Return the same statistics, about another shift."""
        xp = namespace(self.gram)
        if shift is self.shift or bool(xp.all(shift == self.shift)):
            return self
        offset = self.shift - shift
        cross = xp.linalg.outer(beside(self.gram, self.weights) @ self.sums, offset)
        mass = float(self.weights @ self.counts)
        return replace(
            self,
            shift=shift,
            sums=self.sums + beside(self.gram, self.counts.astype(np.float64))[:, None] * offset,
            gram=self.gram + cross + cross.T + mass * xp.linalg.outer(offset, offset),
        )

    def renumbered(self, place: PerClass, num_classes: int) -> ClassStatistics:
        """Return the same statistics with renumbered classes.

        Args:
            place: The new number of each class, all different; -1 only for classes without rows.
            num_classes: The new number of classes.
        """
        kept = np.flatnonzero(place >= 0)
        assert not self.totals[place < 0].any()

        def moved(values: np.ndarray) -> np.ndarray:
            found = np.zeros((num_classes, *values.shape[1:]), dtype=values.dtype)
            found[place[kept]] = values[kept]
            return found

        totals, counts, sums = map(moved, (self.totals, self.counts, self.sums))
        return replace(self, totals=totals, counts=counts, sums=sums)

    def beside(self, array: Any) -> ClassStatistics:
        """Return the same statistics as arrays of the library and on the device of `array`."""
        shift, sums, gram = (beside(array, each) for each in (self.shift, self.sums, self.gram))
        return replace(self, shift=shift, sums=sums, gram=gram)

    @property
    def num_classes(self) -> int:
        """Number of classes, including classes without rows."""
        return len(self.totals)

    @property
    def dim(self) -> int:
        """Width of a feature."""
        return int(self.gram.shape[0])

    @property
    def weights(self) -> Float[np.ndarray, " classes"]:
        """Weight w_c of one row of each class; all rows of the set together weigh one."""
        return row_weights(self.totals, self.weighting)

    @property
    def shares(self) -> Float[np.ndarray, " classes"]:
        """Ave y: 1 / C for each class with rows (`class`), n_c / N (`sample`)."""
        return np.asarray(self.weights * self.totals)

    @property
    def mean(self) -> Float[Any, " dim"]:
        """mu_G = Ave h."""
        return self.shift + self._shifted_mean()

    @property
    def class_means(self) -> Float[Any, "classes dim"]:
        """mu_c; zero for a class without rows."""
        return self._of_present(self._shifted_class_means() + self.shift)

    @property
    def centred_class_means(self) -> Float[Any, "classes dim"]:
        """mu_c - mu_G; zero for a class without rows."""
        return self._of_present(self._shifted_class_means() - self._shifted_mean())

    @property
    def total_covariance(self) -> Float[Any, "dim dim"]:
        """Sigma_T = Ave (h - mu_G)(h - mu_G)^T."""
        xp = namespace(self.gram)
        mean = self._shifted_mean()
        return self.gram - xp.linalg.outer(mean, mean)

    @property
    def within_covariance(self) -> Float[Any, "dim dim"]:
        """Sigma_W = Ave (h - mu_c)(h - mu_c)^T."""
        present = np.flatnonzero(self.totals)  # often a few classes of a thousand
        means = take(self._shifted_class_means(), present)
        return self.gram - (means * beside(self.gram, self.shares[present])[:, None]).T @ means

    @property
    def freedom(self) -> float:
        """Average of 1 - 1 / n_c over the classes with rows, 0 without any.

        The expectation of class-balanced Sigma_W is the population covariance times this factor.
        """
        present = self.totals[self.totals > 0]
        return float((1 - 1 / present).mean()) if len(present) else 0.0

    @property
    def population_covariance(self) -> Float[Any, "dim dim"]:
        """Class-balanced Sigma_W without the bias of few rows; zero if no class has two."""
        return self.within_covariance / self.freedom if self.freedom else 0.0 * self.gram

    @property
    def target_covariance(self) -> Float[Any, "classes dim"]:
        """Ave y (h - mu_G)^T: row c is share_c (mu_c - mu_G)."""
        return beside(self.gram, self.shares)[:, None] * self.centred_class_means

    def _of_present(self, rows: Float[Any, "classes dim"]) -> Float[Any, "classes dim"]:
        return namespace(rows).where(beside(rows, self.totals > 0)[:, None], rows, 0.0)

    def _shifted_mean(self) -> Any:
        return beside(self.gram, self.weights) @ self.sums

    def _shifted_class_means(self) -> Any:
        return self.sums / beside(self.gram, np.maximum(self.totals, 1).astype(np.float64))[:, None]


def count(labels: Int[np.ndarray, " rows"], num_classes: int | None = None) -> PerClass:
    """Return the number of rows of each class; labels must lie in [0, num_classes)."""
    counts = np.bincount(labels, minlength=num_classes or 0)
    if num_classes is not None and len(counts) > num_classes:
        raise ValueError(f"label {len(counts) - 1} is outside [0, {num_classes})")
    return counts


def row_weights(totals: PerClass, weighting: Weighting) -> Float[np.ndarray, " classes"]:
    """Return the weight of a row of each class: 1 / (C n_c) or 1 / N; 0 if n_c = 0."""
    if weighting not in get_args(Weighting):
        raise ValueError(f"weighting is {weighting!r}, expected one of {get_args(Weighting)}")
    present = totals > 0
    if weighting == "sample":
        return np.asarray(present / max(1, totals.sum()))
    return np.asarray(present / (max(1, present.sum()) * np.maximum(totals, 1)))


def _mean(features: Any) -> Any:
    xp, wide = namespace(features), float64_of(features)
    return xp.mean(wide, axis=0) if wide.shape[0] else xp.sum(wide, axis=0)

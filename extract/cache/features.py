"""Features with their labels: the input of every part of `headtrain` and `analysis`."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Int

_FLOAT16 = np.finfo(np.float16)


@dataclass(frozen=True, slots=True, eq=False)
class StoredRows:
    """Selected rows, in any order, of features on disk or in an array; read only on demand.

    `rows[chosen]` reads some rows into a new array; `chosen` is a slice, indices or a mask.
    """

    read: Callable[[Int[np.ndarray, " chosen"]], Float[np.ndarray, "chosen dim"]]
    """Reads rows by their numbers in the stored features."""
    numbers: Int[np.ndarray, " rows"]
    """Number in the stored features of each selected row."""
    dim: int
    dtype: np.dtype[Any]

    @property
    def shape(self) -> tuple[int, int]:
        """Number of rows, and width of a feature vector."""
        return len(self.numbers), self.dim

    @property
    def nbytes(self) -> int:
        """Bytes that an array of all rows would take."""
        return len(self.numbers) * self.dim * self.dtype.itemsize

    def __len__(self) -> int:
        return len(self.numbers)

    def __getitem__(
        self, chosen: slice | Int[np.ndarray, " chosen"] | Bool[np.ndarray, " rows"]
    ) -> Float[np.ndarray, "_ dim"]:
        return self.read(self.numbers[chosen])

    def select(self, chosen: slice | Int[np.ndarray, " chosen"]) -> StoredRows:
        """Return some of the rows, without reading them."""
        return StoredRows(self.read, self.numbers[chosen], self.dim, self.dtype)


def select_rows(features: Float[Any, "rows dim"], chosen: Int[np.ndarray, " chosen"]) -> StoredRows:
    """Return rows of an array, or of `StoredRows`, without copying or reading them."""
    if isinstance(features, StoredRows):
        return features.select(chosen)
    return StoredRows(features.__getitem__, chosen, features.shape[1], features.dtype)


def fit_float16(features: Float[np.ndarray, "rows ..."]) -> Bool[np.ndarray, " rows"]:
    """Return which rows float16 can store at its precision of eleven bits.

    It cannot if a value overflows, or if all values of a row are below the smallest normal number,
    2^-14: there the spacing of numbers stays 2^-24, so values lose bits, down to zero. Such a row
    fits only if float16 represents it exactly. A small value in a row of larger values is no
    problem, because its rounding error is no larger than the errors of the larger values.
    """
    largest = largest_values(features)
    fits, is_small = largest < _FLOAT16.max, largest < _FLOAT16.smallest_normal
    exact = features[is_small].astype(np.float16) == features[is_small]
    fits[is_small] = exact.all(tuple(range(1, features.ndim)))
    return np.asarray(fits)


def largest_values(features: Float[np.ndarray, "rows ..."]) -> Float[np.ndarray, " rows"]:
    """Return the largest absolute value of each row; NaN if the row contains NaN."""
    axes = tuple(range(1, features.ndim))
    # Making an array of absolute values would take longer than `max` and `min` together.
    return np.asarray(np.maximum(features.max(axes, initial=0), -features.min(axes, initial=0)))


def digests_with_copies(features: Float[np.ndarray, "rows dim"]) -> list[list[bytes]]:
    """Return digests of the rows, and of copies of them that are rounded to float16 if they fit.

    Models and caches store either: two rows are the same if they, or one and the copy of the other,
    are equal. Two equal copies may be of different rows.
    """
    rows = features.astype(np.float32, order="C")
    fits, copies = fit_float16(rows), rows.copy()
    copies[fits] = rows[fits].astype(np.float16)
    return [[hashlib.sha256(row).digest() for row in each] for each in (rows, copies)]


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class FeatureSet:
    """Penultimate-layer features with their labels."""

    features: Float[Any, "rows dim"]
    """An array, or `StoredRows` that are read on demand; float16 or float32, as stored."""
    labels: Int[np.ndarray, " rows"]
    """int64, in [0, number of classes)."""
    class_names: tuple[str, ...]
    """One name per class; a class may have no row."""
    groups: Int[np.ndarray, " rows"] | None = None
    """A number for each row, equal in rows of a class that repeat each other, such as frames of a
    video or images of a patient. None if the groups are unknown."""

    def __post_init__(self) -> None:
        if len(self.features) != len(self.labels):
            raise ValueError(f"{len(self.features)} features for {len(self.labels)} labels")
        if len(self.labels) and not (
            self.labels.min() >= 0 and self.labels.max() < len(self.class_names)
        ):
            raise ValueError(f"labels must lie in [0, {len(self.class_names)})")

    @property
    def dim(self) -> int:
        """Width of a feature vector."""
        return int(self.features.shape[1])

    def __repr__(self) -> str:
        rows, classes = f"{len(self.labels):,} rows", f"{len(self.class_names):,} classes"
        where = "" if self.is_loaded else ", on disk"
        return f"<FeatureSet: {rows} of {self.dim} {self.features.dtype} values, {classes}{where}>"

    @property
    def groups_digest(self) -> str | None:
        """SHA-256 (hex) of the groups; None if they are unknown."""
        if self.groups is None:
            return None
        return hashlib.sha256(self.groups.astype("<i8").tobytes()).hexdigest()

    @property
    def is_loaded(self) -> bool:
        """Whether the features are in memory."""
        return not isinstance(self.features, StoredRows)

    def part(self, chosen: Bool[np.ndarray, " rows"]) -> FeatureSet:
        """Return the rows where `chosen` is true; stored features stay on disk."""
        features = select_rows(self.features, np.flatnonzero(chosen))
        groups = None if self.groups is None else self.groups[chosen]
        return FeatureSet(features, self.labels[chosen], self.class_names, groups)

    def fresh(self, known: FeatureSet, *, in_class: bool = False) -> list[bool]:
        """Return which rows are not among the features of `known`; see `digests_with_copies`.

        With `in_class`, they are not among those of their own class.
        """

        def marks(of: FeatureSet) -> list[list[tuple[str, bytes]]]:
            names = [of.class_names[label] if in_class else "" for label in of.labels]
            digests = digests_with_copies(of.features[:])
            return [[*zip(names, each, strict=True)] for each in digests]

        seen, copies = ({*each} for each in marks(known))
        pairs = zip(*marks(self), strict=True)
        return [seen.isdisjoint(pair) and pair[0] not in copies for pair in pairs]

    def without(self, known: FeatureSet, *, in_class: bool = False) -> FeatureSet:
        """Return the `fresh` rows."""
        return self.taken(np.flatnonzero(self.fresh(known, in_class=in_class)))

    def nothing(self, class_names: tuple[str, ...] | None = None) -> FeatureSet:
        """Return a set without rows and of the same width, by default of the same classes."""
        empty = np.empty((0, self.dim), dtype=self.features.dtype)
        names = self.class_names if class_names is None else class_names
        return FeatureSet(empty, np.empty(0, dtype=np.int64), names)

    def first(self, per_class: int) -> FeatureSet:
        """Return the first `per_class` rows of each class, sorted by class."""
        order = np.argsort(self.labels, kind="stable")
        labels = self.labels[order]
        rank = np.arange(len(labels)) - np.searchsorted(labels, labels)
        return self.taken(order[rank < per_class])

    def renumbered(self, place: Int[np.ndarray, " _"], class_names: tuple[str, ...]) -> FeatureSet:
        """Return the rows with other labels.

        Args:
            place: The new label of each class; -1 leaves the rows of the class out.
            class_names: The class names, indexed by the new labels.
        """
        kept = self.taken(np.flatnonzero(place[self.labels] >= 0))
        return FeatureSet(kept.features, place[kept.labels], class_names, kept.groups)

    def taken(self, rows: Int[np.ndarray, " taken"]) -> FeatureSet:
        """Return the rows of these numbers, in this order; stored features are read."""
        groups = None if self.groups is None else self.groups[rows]
        return FeatureSet(self.features[rows], self.labels[rows], self.class_names, groups)

    def named(self, class_names: tuple[str, ...]) -> FeatureSet:
        """Return the rows of the classes in `class_names`; labels are indices in `class_names`."""
        row_of = {name: row for row, name in enumerate(class_names)}
        place = np.array([row_of.get(name, -1) for name in self.class_names], dtype=np.int64)
        return self.renumbered(place, class_names)

    @classmethod
    def joined(cls, parts: Sequence[FeatureSet], class_names: tuple[str, ...]) -> FeatureSet:
        """Return the concatenated rows of sets whose labels all refer to `class_names`.

        Groups are known if they are in all sets; none has rows of two sets.
        """
        features = np.concatenate([part.features[:] for part in parts])
        labels, known = np.concatenate([part.labels for part in parts]), list[np.ndarray]()
        for part in parts:
            if part.groups is not None:
                kinds = np.unique(part.groups, return_inverse=True)[1].reshape(-1)
                known.append(kinds + sum(map(len, known)))
        groups = np.concatenate(known) if known else None
        is_known = groups is not None and len(groups) == len(labels)
        return cls(features, labels, class_names, groups if is_known else None)

    def counts(self) -> Int[np.ndarray, " classes"]:
        """Return the number of rows of each class."""
        return np.bincount(self.labels, minlength=len(self.class_names))

"""What stands for the images of old classes when classes are added."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from clinit.errors import ModelError
from clinit.extract.features import FeatureSet
from clinit.extract.head import Head, head_rows
from clinit.headtrain.deployed.head_memory import memory_of_head
from clinit.headtrain.deployed.pseudo_features import pseudo_features
from clinit.headtrain.export.memory import Memory

OldRowsChoice = Literal["auto", "kept", "pseudo", "head", "none"]
MOST_PSEUDO_ROWS = 60_000


@dataclass(frozen=True, slots=True, eq=False)
class OldRows:
    """Rows of the classes that a model knows, real or drawn, and what they are."""

    rows: FeatureSet
    """With a name per row of the classifier."""
    kind: str
    """In words: `4,000 rows drawn from the statistics of 1,000 classes`."""


def old_rows(
    choice: OldRowsChoice,
    head: Head,
    memory: Memory | None,
    new: FeatureSet,
    *,
    given: FeatureSet | None = None,
    seed: int = 0,
) -> OldRows:
    """Return rows of the old classes, the best there are unless `choice` asks for others.

    `auto` takes, for each class, given rows; or kept rows, if they are at least as many as would be
    drawn; or rows drawn from its statistics; or rows drawn from what the head says of it.

    Args:
        choice: Which rows.
        head: The classifier, with class names.
        memory: What the model remembers.
        new: Rows of the new classes, from which the covariance is taken where none is remembered.
        given: Real rows of old classes, from a feature cache.
        seed: Of what is drawn.

    Raises:
        ModelError: If the model remembers nothing of the kind that is asked for.
    """
    names = head.class_names
    assert names is not None
    empty = FeatureSet(new.features[:0], new.labels[:0], names)
    if choice == "none":
        return OldRows(empty, "none")
    parts = _Parts(names)
    if choice in ("auto", "kept"):
        if given is not None:
            parts.add(in_rows_of(head, given), "real rows of the cache")
        if memory is not None:
            least = 1 if choice == "kept" else _per_class(memory)
            parts.add(_of_classes(memory.kept, least), "real rows that the model keeps")
    if choice in ("auto", "pseudo") and memory is not None:
        parts.draw(memory, seed, "rows drawn from the statistics of old classes")
    if choice in ("auto", "head") and not parts.complete:
        guess = memory_of_head(head, new)
        parts.draw(guess, seed, "rows drawn from what the head says of old classes")
    if not parts.taken:
        raise ModelError(
            f"the model {'keeps no training rows' if choice == 'kept' else 'remembers no images'}"
            " of its classes",
            remedy="Let it remember some: `clinit remember MODEL IMAGES --out NEW`"
            + (" with --keep N, or give a cache of old classes with --old" * (choice == "kept"))
            + f". Or leave out `--old-rows {choice}`.",
        )
    return parts.joined()


def in_rows_of(head: Head, rows: FeatureSet) -> FeatureSet:
    """Return the rows of classes that the head knows by name, with the labels of its rows."""
    assert head.class_names is not None
    labels = head_rows(head, rows.class_names)[rows.labels]
    known = labels >= 0
    return FeatureSet(rows.features[known], labels[known], head.class_names)


def _of_classes(rows: FeatureSet, least: int) -> FeatureSet:
    """Return the rows of the classes that have at least so many."""
    enough = (rows.counts() >= least)[rows.labels]
    return FeatureSet(rows.features[enough], rows.labels[enough], rows.class_names)


class _Parts:
    """Rows of several kinds: each class has those of the first kind that holds some of it."""

    def __init__(self, class_names: tuple[str, ...]) -> None:
        self._names = class_names
        self._has_rows = np.zeros(len(class_names), dtype=bool)
        self.taken: list[tuple[FeatureSet, str]] = []

    @property
    def complete(self) -> bool:
        """Whether each class has rows."""
        return bool(self._has_rows.all())

    def add(self, rows: FeatureSet, what: str) -> None:
        """Take the rows of the classes that have none yet."""
        needed = ~self._has_rows[rows.labels]
        self._has_rows[rows.labels] = True
        if needed.any():
            features = rows.features[needed].astype(np.float32)
            self.taken.append((FeatureSet(features, rows.labels[needed], self._names), what))

    def draw(self, memory: Memory, seed: int, what: str) -> None:
        """Draw rows, where the memory knows a class that has none yet."""
        if (memory.known & ~self._has_rows).any():
            self.add(pseudo_features(memory, _per_class(memory), seed), what)

    def joined(self) -> OldRows:
        """Return all rows that were taken."""
        features = np.concatenate([rows.features for rows, _ in self.taken])
        labels = np.concatenate([rows.labels for rows, _ in self.taken])
        kinds = [f"{len(rows.labels):,} {what}" for rows, what in self.taken]
        return OldRows(FeatureSet(features, labels, self._names), ", ".join(kinds))


def _per_class(memory: Memory) -> int:
    """Return how many rows to draw: enough for the covariance, and a few of each class."""
    classes = int(memory.known.sum())
    wanted = max(8 * memory.dim, 8 * classes)
    return max(2, min(wanted, MOST_PSEUDO_ROWS) // max(1, classes))

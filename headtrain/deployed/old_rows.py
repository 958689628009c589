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
from clinit.headtrain.export.memory import Memory, no_rows

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

    `auto` takes given rows; else kept rows, with drawn ones for classes without; else rows drawn
    from what the head says.

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
    if given is not None and choice in ("auto", "kept"):
        return _real(in_rows_of(head, given), "of the cache")
    if memory is not None and choice == "kept":
        if not len(memory.kept.labels):
            raise ModelError(
                "the model keeps no training rows",
                remedy="Give a feature cache of old classes with `--old CACHE`, or leave out"
                " `--old-rows kept`.",
            )
        return _real(memory.kept, "that the model keeps")
    if memory is not None and memory.known.any() and choice in ("auto", "pseudo"):
        return _remembered(choice, memory, seed)
    if choice in ("kept", "pseudo"):
        raise ModelError(
            "the model remembers no images of its classes",
            remedy="Let it remember some: `clinit remember MODEL IMAGES --out NEW`; or leave out"
            f" `--old-rows {choice}`.",
        )
    estimated = memory_of_head(head, new)
    drawn = pseudo_features(estimated, _per_class(estimated), seed)
    return OldRows(drawn, f"{len(drawn.labels):,} rows drawn from what the head says")


def in_rows_of(head: Head, rows: FeatureSet) -> FeatureSet:
    """Return the rows of classes that the head knows by name, with the labels of its rows."""
    assert head.class_names is not None
    labels = head_rows(head, rows.class_names)[rows.labels]
    known = labels >= 0
    return FeatureSet(rows.features[known], labels[known], head.class_names)


def _real(rows: FeatureSet, whose: str) -> OldRows:
    return OldRows(rows, f"{len(rows.labels):,} real rows {whose}")


def _remembered(choice: str, memory: Memory, seed: int) -> OldRows:
    """Return kept rows, and rows drawn for the classes without any."""
    kept = memory.kept if choice == "auto" else no_rows(memory.kept)
    has_rows = np.zeros(len(memory.class_names), dtype=bool)
    has_rows[kept.labels] = True
    drawn = pseudo_features(memory, _per_class(memory), seed)
    needed = ~has_rows[drawn.labels]
    rows = FeatureSet(
        np.concatenate([kept.features.astype(np.float32), drawn.features[needed]]),
        np.concatenate([kept.labels, drawn.labels[needed]]),
        memory.class_names,
    )
    said = f"{int(needed.sum()):,} rows drawn from the statistics of old classes"
    if len(kept.labels):
        said = f"{len(kept.labels):,} real rows that the model keeps, {said}"
    return OldRows(rows, said)


def _per_class(memory: Memory) -> int:
    """Return how many rows to draw: enough for the covariance, and a few of each class."""
    classes = int(memory.known.sum())
    wanted = max(8 * memory.dim, 8 * classes)
    return max(2, min(wanted, MOST_PSEUDO_ROWS) // max(1, classes))

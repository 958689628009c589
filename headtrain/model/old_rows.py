"""Rows of old classes, of which images are rarely at hand: real, remembered or guessed.

If a model remembers class statistics, features are drawn from them, in pairs around the class means
(`clinit.headtrain.protocol.train.past`); otherwise from a guess (`clinit.headtrain.model.guesses`).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from clinit.extract.cache.features import FeatureSet
from clinit.extract.cache.head import Head
from clinit.headtrain.heads.array import with_diagonal
from clinit.headtrain.heads.seeds import Draw, generator
from clinit.headtrain.model.guesses import Guesses, guessed_variances
from clinit.headtrain.model.memory import Memory
from clinit.headtrain.protocol.stream.buffer import drawn_per_class
from clinit.headtrain.protocol.train.past import paired_rows, root

USUAL_IMAGES = 20
"""Images, besides the first of each class, as which variances guessed from new images count in the
covariance of old classes: of one image of each class, it would be zero."""
DRAWN = "synthetic"
"""In descriptions of rows that are not real features."""


class OldRows(NamedTuple):
    """Rows of old classes."""

    rows: FeatureSet
    kind: str
    """What they are (`4,000 synthetic features from class statistics`)."""
    known: FeatureSet
    """The rows among them that are real ones, or drawn from statistics of real ones."""
    guesses: Guesses | None
    """How the other rows came about."""


def old_rows(
    head: Head, memory: Memory | None, new: FeatureSet, given: FeatureSet | None = None
) -> OldRows:
    """Return rows of the old classes: real or drawn features.

    For each class, the first available kind is taken: given rows; drawn from its statistics; drawn
    from the weights of the head.

    Args:
        head: The classifier, with class names.
        memory: The model's memory.
        new: Rows of the new classes, which give the covariance if none is remembered.
        given: Real rows of old classes, from a feature cache.
    """
    names = head.class_names
    assert names is not None
    has_rows = np.zeros(len(names), dtype=bool)
    taken: list[FeatureSet] = []
    kinds: list[str] = []

    def add(rows: FeatureSet, what: str) -> None:
        """Add the rows of classes that have no rows yet."""
        needed = ~has_rows[rows.labels]
        has_rows[rows.labels] = True
        if needed.any():
            features = rows.features[needed].astype(np.float32)
            taken.append(FeatureSet(features, rows.labels[needed], names))
            kinds.append(f"{int(needed.sum()):,} {what}")

    if given is not None:
        add(given.named(names), "real features from the cache")
    if memory is not None and (memory.known & ~has_rows).any():
        count = drawn_per_class(int(memory.known.sum()), memory.dim)
        drawn = pseudo_features(memory, guessed_variances(new), count, 0)
        add(drawn, f"{DRAWN} features from class statistics")
    known = FeatureSet.joined([new.nothing(names), *taken], names)
    guesses = None
    if not has_rows.all():
        guesses = Guesses.of(head, np.flatnonzero(~has_rows), new)
        rows = guesses.rows(guesses.population)
        add(rows, f"{DRAWN} features from the classifier's weights")
    return OldRows(FeatureSet.joined(taken, names), ", ".join(kinds), known, guesses)


def pseudo_features(
    memory: Memory, variances: Float[np.ndarray, " dim"], rows_per_class: int, seed: int
) -> FeatureSet:
    """Draw rows of all classes whose means are known.

    Args:
        memory: Statistics of the classes.
        variances: Usual ones within a class; they count as `USUAL_IMAGES` images.
        rows_per_class: Rows of each class; rounded up to an even number.
        seed: Equal seeds give equal rows.
    """
    classes = np.flatnonzero(memory.known)
    share = USUAL_IMAGES / (USUAL_IMAGES + float((memory.counts[classes] - 1).sum()))
    covariance = with_diagonal((1 - share) * memory.population_covariance, share * variances)
    random = generator(seed, Draw.PSEUDO_ROWS)
    rows = paired_rows(memory.means[classes], root(covariance), rows_per_class, random)
    labels = np.repeat(classes, rows.shape[1])
    return FeatureSet(rows.reshape(-1, memory.dim), labels, memory.class_names)

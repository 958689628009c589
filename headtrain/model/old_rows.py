"""Rows of old classes, of which images are rarely at hand: real, remembered or guessed.

If a model remembers the statistics of classes, features are drawn from them, and otherwise from a
guess (`clinit.headtrain.model.guesses`): in pairs around the means of the classes. Losses are
measured on drawn features. Their sums are taken from the statistics, so that few are drawn.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np
import scipy.linalg
from jaxtyping import Float, Int

from clinit.extract.cache.features import FeatureSet
from clinit.extract.cache.head import Head
from clinit.headtrain.heads.array import beside, namespace, take, to_numpy, with_diagonal
from clinit.headtrain.heads.groups import Mask, balanced_draw
from clinit.headtrain.heads.linear import Rows, may_win
from clinit.headtrain.heads.seeds import Draw, generator
from clinit.headtrain.heads.start.judges import OLD_ROWS
from clinit.headtrain.heads.start.new_rows import NewClasses
from clinit.headtrain.heads.statistics.class_statistics import (
    ClassStatistics,
    Weighting,
    row_weights,
)
from clinit.headtrain.heads.statistics.moments import MomentSums, add_products, cut, symmetric
from clinit.headtrain.model import guesses
from clinit.headtrain.model.memory import Memory
from clinit.headtrain.protocol.stream.buffer import drawn_per_class
from clinit.headtrain.protocol.train.past import root, whitened

USUAL_IMAGES = 20
"""Images, besides the first of each class, as which variances guessed from new images count in the
covariance of old classes: of one image of each class, it would be zero."""
MOST_PAIRS, MOST_ANEW = 4096, 2048
"""Maximum numbers of pairs of drawn rows, and of rows of old classes in the test of left-out
images; at least one of each class."""
DRAWN = "synthetic"
"""In descriptions of rows that are not real features."""


class DrawnClasses(NamedTuple):
    """Classes of normal distributions of one covariance, with rows that are drawn from them."""

    classes: Int[np.ndarray, " drawn"]
    means: Float[np.ndarray, "drawn dim"]
    covariance: Float[np.ndarray, "dim dim"]
    images: int
    """Number of images of each class, as which the statistics count."""
    offsets: Float[np.ndarray, "drawn pairs dim"]
    """Of the first row of each pair from the mean, in float32."""

    @property
    def number(self) -> int:
        """Number of rows."""
        return 2 * int(np.prod(self.offsets.shape[:2]))

    @property
    def rows(self) -> tuple[Float[np.ndarray, "rows dim"], Int[np.ndarray, " rows"]]:
        """The rows, class by class, in float32, and their classes."""
        centres = self.means[:, None, :].astype(np.float32)
        rows = np.concatenate([centres + self.offsets, centres - self.offsets], axis=1)
        return rows.reshape(-1, rows.shape[2]), np.repeat(self.classes, rows.shape[1])


@dataclass(frozen=True, eq=False)
class OldRows:
    """Rows of old classes, and the statistics that they stand for."""

    head: Head
    given: FeatureSet
    """Real features."""
    remembered: DrawnClasses | None
    """Classes of which statistics are known; None: no class."""
    guess: DrawnClasses | None
    """All other classes."""
    noise: Float[np.ndarray, "guessed pairs dim"]
    """From which `guess` is drawn, in float32."""

    @cached_property
    def rows(self) -> FeatureSet:
        """All rows: given, remembered, guessed."""
        names = self.given.class_names
        drawn = [FeatureSet(*each.rows, names) for each in self.drawn]
        return FeatureSet.joined([self.given, *drawn], names)

    @property
    def known(self) -> OldRows:
        """Those of which images or their statistics are known."""
        return replace(self, guess=None)

    @property
    def kind(self) -> str:
        """What they are (`4,000 synthetic features from class statistics`)."""
        kinds = {"real features from the cache": len(self.given.labels)}
        sources = {"class statistics": self.remembered, "the classifier's weights": self.guess}
        for source, each in sources.items():
            kinds[f"{DRAWN} features from {source}"] = 0 if each is None else each.number
        return ", ".join(f"{number:,} {kind}" for kind, number in kinds.items() if number)

    @property
    def drawn(self) -> list[DrawnClasses]:
        """The classes without real features."""
        return [each for each in (self.remembered, self.guess) if each is not None]

    def anew(self, data: NewClasses, kept: Mask) -> NewClasses:
        """Return some rows of data, with guessed rows from a guess by the new images among them.

        Left-out images are tested too easily by rows that had to differ from guesses made with
        them: with two images per class, 94 % were right where other images had 50 %.

        Returns:
            The data, with at most `MOST_ANEW` rows of old classes, or two of each.
        """
        assert self.guess is not None
        pairs = max(1, MOST_ANEW // (2 * self.head.num_classes))
        is_new = data.labels >= data.start
        known = np.flatnonzero(kept & ~is_new & ~np.isin(data.labels, self.guess.classes))
        most = 2 * pairs * len(np.unique(data.labels[known]))
        chosen = kept & is_new
        chosen[known[balanced_draw(data.labels[known], most)]] = True
        rest = data.subset(chosen)
        new = np.flatnonzero(rest.labels >= data.start)
        images, labels = to_numpy(take(rest.features, new)), rest.labels[new] - data.start
        names = tuple(map(str, range(data.start, data.stop)))
        groups = rest.groups
        own = np.arange(len(new)) if groups is None else groups[new]
        fewer = guesses.distinct(FeatureSet(images, labels, names, own))
        population = guesses.guessed_population(self.head, fewer, data.came_with)
        guess = _guessed(population, self.guess.classes, self.noise[:, :pairs])
        rows, labels = guess.rows
        if groups is not None:
            groups = np.append(groups, groups.max(initial=-1) + 1 + np.arange(len(labels)))
        return replace(
            rest,
            features=namespace(rest.features).concat([rest.features, beside(rest.features, rows)]),
            labels=np.append(rest.labels, labels),
            groups=groups,
            drawn=replace(self, guess=guess),
        )

    def statistics(self, data: NewClasses, weighting: Weighting) -> ClassStatistics:
        """Return the statistics of data, with those that rows were drawn from in place of rows."""
        none, totals = take(data.features, slice(0)), data.counts
        classes = np.concatenate([part.classes for part in self.drawn])
        means = np.concatenate([part.means for part in self.drawn]).astype(np.float64)
        is_real = ~np.isin(np.arange(data.stop), classes)
        for part in self.drawn:
            totals[part.classes] = part.images
        sums = MomentSums.about(row_weights(totals, weighting), beside(none, means.mean(axis=0)))
        real = np.flatnonzero(is_real[data.labels])
        for block in cut(data.features, data.labels, real, data.shares):
            sums.add(*block)
        sums.counts = np.where(is_real, sums.counts, totals)
        masses, offsets = sums.weights * totals, beside(none, means) - sums.shift
        sums.sums[classes, :] = beside(none, totals[classes].astype(np.float64))[:, None] * offsets
        offsets *= beside(none, np.sqrt(masses[classes]))[:, None]
        gram = symmetric(add_products(sums.lower, offsets))
        for part in self.drawn:
            gram += float(masses[part.classes].sum()) * beside(none, part.covariance)
        return ClassStatistics(totals, weighting, sums.counts, sums.shift, sums.sums, gram)


def old_rows(
    head: Head, memory: Memory | None, new: FeatureSet, given: FeatureSet, came_with: int | None
) -> OldRows:
    """Return rows of the old classes: real or drawn features.

    For each class, the first available kind is taken: given rows; drawn from its statistics; drawn
    from a guess.

    Args:
        head: The classifier, with class names.
        memory: The model's memory.
        new: Rows of the new classes, on which guesses are based.
        given: Real rows of old classes, from a feature cache.
        came_with: Number of classes, first, that were not added to the head; None: all.
    """
    names = head.class_names
    assert names is not None
    given = given.named(names)
    given = replace(given, features=given.features[:].astype(np.float32), groups=None)
    # Nothing stands in for a class that must not win.
    missing = (given.counts() == 0) & may_win(Rows.of_head(head), new.features)
    dim, new = head.dim, guesses.distinct(new)
    wanted = -(-drawn_per_class(len(names), dim) // 2)
    remembered = guess = None
    is_known = missing & (memory.known if memory is not None else False)
    if memory is not None and is_known.any():
        classes = np.flatnonzero(is_known)
        pairs = max(_pairs(wanted, len(names)), -(-OLD_ROWS // (2 * len(classes))))
        remembered = drawn_from(memory, classes, guesses.guessed_variances(new), pairs)
    classes = np.flatnonzero(missing & ~is_known)
    noise = np.zeros((len(classes), 0, dim), dtype=np.float32)
    if len(classes):
        population = guesses.guessed_population(head, new, came_with)
        noise = _noise(len(classes), _pairs(wanted, len(classes)), dim)
        guess = _guessed(population, classes, noise)
    return OldRows(head, given, remembered, guess, noise)


def drawn_from(
    memory: Memory,
    classes: Int[np.ndarray, " drawn"],
    variances: Float[np.ndarray, " dim"],
    pairs: int,
) -> DrawnClasses:
    """Draw rows of classes that a model remembers.

    Args:
        memory: Statistics of the classes.
        classes: Some of those whose means are known.
        variances: Usual ones within a class; they count as `USUAL_IMAGES` images.
        pairs: Pairs of rows of each class.
    """
    counts = memory.counts[memory.known]
    share = USUAL_IMAGES / (USUAL_IMAGES + float((counts - 1).sum()))
    covariance = with_diagonal((1 - share) * memory.population_covariance, share * variances)
    try:
        half = scipy.linalg.cholesky(covariance, lower=True)
    except np.linalg.LinAlgError:  # a difference of covariances that were stored in float32
        half = root(covariance)
        covariance = half @ half
    noise = _noise(len(classes), pairs, memory.dim)
    offsets = (noise.reshape(-1, memory.dim) @ half.T.astype(np.float32)).reshape(noise.shape)
    images = drawn_per_class(len(counts), memory.dim)
    return DrawnClasses(classes, memory.means[classes], covariance, images, offsets)


def _guessed(
    guess: guesses.Population,
    classes: Int[np.ndarray, " guessed"],
    noise: Float[np.ndarray, "guessed pairs dim"],
) -> DrawnClasses:
    offsets = guess.own.spread(noise.reshape(-1, noise.shape[2]))
    offsets *= guess.deviation.astype(np.float32)
    covariance, images = guess.covariance, 2 * noise.shape[1]
    return DrawnClasses(
        classes, guess.means[classes], covariance, images, offsets.reshape(noise.shape)
    )


def _pairs(wanted: int, classes: int) -> int:
    return max(1, min(wanted, MOST_PAIRS // classes))


def _noise(classes: int, pairs: int, dim: int) -> Float[np.ndarray, "classes pairs dim"]:
    """Return rows of second moment I, if there are as many, in float32."""
    random = generator(0, Draw.PSEUDO_ROWS)
    noise = random.standard_normal((classes * pairs, dim)).astype(np.float32)
    return whitened(noise).reshape(classes, pairs, dim)

"""Rows of old classes, of which images are rarely at hand: real, remembered or guessed.

If a model remembers class statistics, features are drawn from them, in pairs around the class means
(`clinit.headtrain.protocol.train.past`).

Otherwise, statistics are estimated from the rows of the head. With v_c the row of a class less the
mean of all rows, and b_c its bias less the mean of all biases, the mean of the class is

    mu_c = m + g D v_c,

with D the variance of each feature over the new images: a head weighs a feature by what it tells in
units of its noise, as a linear discriminant does. On features of equal variances, D changes
nothing; on spoken digits (spectra of very unequal variances), old classes kept 99.7 in place of
11.4 % next to five new classes of twenty recordings. All else happens in units of sqrt(D).

Rows of a trained head have the directions of the class means (NC3: V. Papyan, X. Y. Han,
D. L. Donoho, "Prevalence of neural collapse during the terminal phase of deep learning training",
PNAS 2020). At the centre m of all classes no class is preferred: m is the point nearest to the mean
of the new classes at which all logits v_c.m + b_c are equal, by least squares with a ridge. The
factor g makes the old classes as far from m as the new classes are from their centre. The
covariance is the covariance of the new images within their classes, shrunk because the images are
few (O. Ledoit, M. Wolf, "A well-conditioned estimator for large-dimensional covariance matrices",
Journal of Multivariate Analysis 88(2), 2004). It is then scaled up and mixed with a multiple of the
identity, because a thousand old classes vary in more directions than a few new classes.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import scipy.linalg
from jaxtyping import Float, Int
from sklearn.covariance import ledoit_wolf

from clinit.extract.cache.features import FeatureSet
from clinit.extract.cache.head import Head
from clinit.headtrain.heads.array import beside, namespace, take, to_numpy
from clinit.headtrain.heads.seeds import Draw, generator
from clinit.headtrain.heads.start.new_rows import NewClasses
from clinit.headtrain.heads.statistics.class_statistics import (
    ClassStatistics,
    Weighting,
    row_weights,
)
from clinit.headtrain.heads.statistics.moments import MomentSums, add_products, cut, symmetric
from clinit.headtrain.model.memory import Memory
from clinit.headtrain.protocol.stream.buffer import drawn_per_class
from clinit.headtrain.protocol.train.past import paired_rows, root, whitened

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
        add(pseudo_features(memory, count, 0), f"{DRAWN} features from class statistics")
    known = FeatureSet.joined([new.nothing(names), *taken], names)
    guesses = None
    if not has_rows.all():
        guesses = Guesses.of(head, np.flatnonzero(~has_rows), new)
        rows = guesses.rows(guesses.population)
        add(rows, f"{DRAWN} features from the classifier's weights")
    return OldRows(FeatureSet.joined(taken, names), ", ".join(kinds), known, guesses)


def pseudo_features(memory: Memory, rows_per_class: int, seed: int) -> FeatureSet:
    """Draw rows of all classes whose means are known.

    Args:
        memory: Statistics of the classes.
        rows_per_class: Rows of each class; rounded up to an even number.
        seed: Equal seeds give equal rows.
    """
    classes = np.flatnonzero(memory.known)
    rows = paired_rows(
        memory.means[classes],
        root(memory.population_covariance),
        rows_per_class,
        generator(seed, Draw.PSEUDO_ROWS),
    )
    labels = np.repeat(classes, rows.shape[1])
    return FeatureSet(rows.reshape(-1, memory.dim), labels, memory.class_names)


USUAL_ROWS = 5
RIDGE = 0.1
"""Ridge in the search for the centre, relative to the mean eigenvalue of the rows."""
WIDENING, ROUNDING = 8.0, 0.9
"""Factor of the covariance, and share of it that becomes equal in all directions. Chosen on
photographs: with 8 and 0.5, ViT-tiny recognised 4 points less of classes of five images."""


MOST_PAIRS, MOST_ANEW = 4096, 2048
"""Maximum numbers of pairs of guessed rows, and of guessed rows that are drawn anew for the test of
left-out images."""


class Population(NamedTuple):
    """What the rows of a head, and new images, tell of the images of its classes."""

    means: Float[np.ndarray, "classes dim"]
    deviation: Float[np.ndarray, " dim"]
    """sqrt(D), the unit of each feature."""
    within: Float[np.ndarray, "dim dim"]
    """Covariance within classes in these units, positive definite."""
    within_new: Float[np.ndarray, "dim dim"]
    """The same of the new classes, or around their mean if no class has two images."""

    @property
    def covariance(self) -> Float[np.ndarray, "dim dim"]:
        """Covariance within classes."""
        return _scaled(self.within, self.deviation)

    @property
    def of_new(self) -> Float[np.ndarray, "dim dim"]:
        """Covariance within the new classes."""
        return _scaled(self.within_new, self.deviation)


def _scaled(
    covariance: Float[np.ndarray, "dim dim"], deviation: Float[np.ndarray, " dim"]
) -> Float[np.ndarray, "dim dim"]:
    found: np.ndarray = deviation[:, None] * covariance
    found *= deviation
    return found


def guessed_population(head: Head, new: FeatureSet) -> Population:
    """Estimate the statistics of a head's classes from its rows and new images.

    Args:
        head: The classifier.
        new: Features of images of other classes, at least one.
    """
    deviation = _deviation(new.features)
    scaled = FeatureSet(new.features / deviation, new.labels, new.class_names)
    centre, covariance, spread = _surroundings(scaled)
    offsets = head.weight * deviation
    offsets -= offsets.mean(axis=0)
    factor = np.sqrt(spread / max(float(np.square(offsets).sum(axis=1).mean()), 1e-30))
    means = _centre(offsets, head.bias.astype(np.float64), centre) + factor * offsets
    widened = WIDENING * (1 - ROUNDING) * covariance
    widened[np.diag_indices_from(widened)] += WIDENING * ROUNDING * np.trace(covariance) / head.dim
    return Population((deviation * means).astype(np.float32), deviation, widened, covariance)


@dataclass(frozen=True, eq=False)
class Guesses:
    """Rows of old classes that are drawn from a guess, and drawn anew from another one."""

    head: Head
    classes: Int[np.ndarray, " guessed"]
    population: Population
    noise: Float[np.ndarray, "guessed pairs dim"]
    """In float32; of second moment I if there are enough."""

    @classmethod
    def of(cls, head: Head, classes: Int[np.ndarray, " guessed"], new: FeatureSet) -> Guesses:
        """Draw the noise for as many rows of these classes as `drawn_per_class` wants.

        But no more than `MOST_PAIRS` or, if that is more, as their second moment takes.
        """
        pairs = -(-drawn_per_class(head.num_classes, head.dim) // 2)
        pairs = min(pairs, max(MOST_PAIRS // len(classes), -(-head.dim // len(classes))))
        random = generator(0, Draw.PSEUDO_ROWS)
        noise = random.standard_normal((len(classes) * pairs, head.dim)).astype(np.float32)
        noise = whitened(noise).reshape(-1, pairs, head.dim)
        return cls(head, classes, guessed_population(head, new), noise)

    def rows(self, guess: Population, pairs: int | None = None) -> FeatureSet:
        """Return rows in pairs around the means of their classes, in float32."""
        factor = scipy.linalg.cholesky(guess.within.astype(np.float32), overwrite_a=True)
        factor *= guess.deviation.astype(np.float32)
        noise = self.noise[:, :pairs]
        offsets = scipy.linalg.blas.strmm(
            1.0, factor, noise.reshape(-1, self.head.dim).T, trans_a=1
        )
        offsets = offsets.T.reshape(noise.shape)
        centres = guess.means[self.classes, None, :]
        rows = np.concatenate([centres + offsets, centres - offsets], axis=1)
        labels = np.repeat(self.classes, rows.shape[1])
        assert self.head.class_names is not None
        return FeatureSet(rows.reshape(-1, self.head.dim), labels, self.head.class_names)

    def anew(self, fewer: NewClasses, weighting: Weighting) -> tuple[NewClasses, ClassStatistics]:
        """Return data whose guessed rows are drawn anew, for the new images in it.

        Left-out images are tested too easily by rows that had to differ from guesses made with
        them: with two images per class, 94 % were right where other images had 50 %.

        Args:
            fewer: Old rows and some of the new images.
            weighting: Kind of average of the statistics.

        Returns:
            The data, with at most `MOST_ANEW` guessed rows, and their statistics, in which the
            guessed classes are just as they were guessed.
        """
        kept = np.flatnonzero(~np.isin(fewer.labels, self.classes))
        groups = None if fewer.groups is None else fewer.groups[kept]
        rest = replace(
            fewer, features=take(fewer.features, kept), labels=fewer.labels[kept], groups=groups
        )
        is_new = rest.labels >= fewer.start
        images, names = to_numpy(rest.features)[is_new], map(str, range(fewer.start, fewer.stop))
        guess = guessed_population(
            self.head, FeatureSet(images, rest.labels[is_new] - fewer.start, tuple(names))
        )
        drawn = self.rows(guess, max(1, MOST_ANEW // (2 * len(self.classes))))
        if groups is not None:
            groups = np.append(groups, groups.max(initial=-1) + 1 + np.arange(len(drawn.labels)))
        features = [rest.features, beside(rest.features, drawn.features)]
        data = replace(
            rest,
            features=namespace(rest.features).concat(features),
            labels=np.append(rest.labels, drawn.labels),
            groups=groups,
        )
        totals, classes = data.counts, self.classes
        means = beside(rest.features, guess.means[classes].astype(np.float64))
        shift = namespace(means).mean(means, axis=0)
        sums = MomentSums.about(row_weights(totals, weighting), shift)
        each, means = totals[classes], means - shift
        weights = sums.weights[classes] * each
        sums.lower = beside(means, float(weights.sum()) * guess.covariance).T
        for block in cut(rest.features, rest.labels, None, rest.shares):
            sums.add(*block)
        sums.counts = sums.counts + np.bincount(drawn.labels, minlength=fewer.stop)
        sums.sums[classes, :] = beside(means, each.astype(np.float64))[:, None] * means
        gram = symmetric(add_products(sums.lower, beside(means, np.sqrt(weights))[:, None] * means))
        return data, ClassStatistics(totals, weighting, sums.counts, sums.shift, sums.sums, gram)


def _deviation(features: Float[np.ndarray, "rows dim"]) -> Float[np.ndarray, " dim"]:
    """Return the deviation of each feature; the mean variance counts as `USUAL_ROWS` rows more."""
    variance, rows = features.astype(np.float64).var(axis=0), len(features)
    usual = float(variance.mean()) or 1.0
    return np.asarray(np.sqrt((rows * variance + USUAL_ROWS * usual) / (rows + USUAL_ROWS)))


def _centre(
    offsets: Float[np.ndarray, "classes dim"],
    bias: Float[np.ndarray, " classes"],
    near: Float[np.ndarray, " dim"],
) -> Float[np.ndarray, " dim"]:
    """Return the point nearest to `near` at which no class is preferred."""
    mean_eigenvalue = float(np.square(offsets).sum()) / len(near) or 1.0
    preferred, fewer = bias - bias.mean() + offsets @ near, len(offsets) < len(near)
    system = offsets @ offsets.T if fewer else offsets.T @ offsets
    system[np.diag_indices_from(system)] += RIDGE * mean_eigenvalue
    # (O'O + r I)^-1 O' p = O' (OO' + r I)^-1 p
    if fewer:
        step = offsets.T @ scipy.linalg.solve(system, preferred, assume_a="pos")
    else:
        step = scipy.linalg.solve(system, offsets.T @ preferred, assume_a="pos")
    return np.asarray(near - step)


def _surroundings(
    new: FeatureSet,
) -> tuple[Float[np.ndarray, " dim"], Float[np.ndarray, "dim dim"], float]:
    """Return the mean of the class means, the shrunk covariance, and the spread of the means.

    The covariance is taken within classes or, if no class has two images, around the mean of all
    images. The spread is the mean squared distance of the class means from their mean, less its
    expectation by chance with so few images, and at least a tenth of the variance within classes.
    """
    rows = new.features.astype(np.float64)
    counts = new.counts()
    sums = np.zeros((len(counts), new.dim))
    np.add.at(sums, new.labels, rows)
    means = sums / np.maximum(counts, 1)[:, None]
    present = counts > 0
    centre = means[present].mean(axis=0)
    several, covariance = counts[new.labels] > 1, np.zeros((new.dim, new.dim))
    if several.any():
        unbiased = np.sqrt(counts / np.maximum(counts - 1, 1))[new.labels][:, None]
        within = ((rows - means[new.labels]) * unbiased)[several]
        covariance = ledoit_wolf(within, assume_centered=True)[0]
    elif len(rows) > 1:
        covariance = ledoit_wolf(rows)[0]
    if not covariance.any():  # a single image, or equal ones
        covariance = np.eye(new.dim) * float(np.square(rows).mean())
    variance = float(np.trace(covariance))
    number = int(present.sum())
    found = float(np.square(means[present] - centre).sum()) / max(1, number - 1)
    chance = variance * float((1 / counts[present]).mean())
    return centre, covariance, max(found - chance, 0.1 * variance)

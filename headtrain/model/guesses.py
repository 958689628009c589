"""Images of old classes as a head and the new images let guess them.

Statistics are estimated from the rows of the head. With v_c the row of a class less the mean of all
rows, and b_c its bias less the mean of all biases, the mean of the class is

    mu_c = m + g D v_c / s,

with D the variance of each feature over the new images, and s^2 the mean over classes of D v_c^2:
class means vary in each feature as images do. A head that weighs a feature by what it tells in
units of its noise, as a linear discriminant does, has D v_c of this kind, and s about equal for all
features; one of ridge or logistic regression on features of unequal units has v_c. The mean of s^2
counts as `USUAL_CLASSES` classes more. All else happens in units of sqrt(D).

Rows of a trained head have the directions of the class means (NC3: V. Papyan, X. Y. Han,
D. L. Donoho, "Prevalence of neural collapse during the terminal phase of deep learning training",
PNAS 2020). At the centre m of all classes no class is preferred: m is the point nearest to the mean
of the new classes at which all logits v_c.m + b_c are equal, by least squares with a ridge. The
covariance within classes has the shape of that of the new images, shrunk because the images are few
(O. Ledoit, M. Wolf, "A well-conditioned estimator for large-dimensional covariance matrices",
Journal of Multivariate Analysis 88(2), 2004), and mixed with a multiple of the identity, because a
thousand old classes vary in more directions than a few new classes. A single image has no
covariance; the identity takes its place.

Both sizes follow from the logits of the new images, which are images of none of the old classes:
their deviation S over classes (`logit_size`) is about that of the logits of an old image for the
classes that are not its own (0.7 to 1.0 of it on photographs, text and audio), the logit of its own
class lies 2.6 to 5.4 S above the mean, and varies by 1.1 S. The factor g puts guessed class means
at `OWN` S, on average of classes, and the covariance is such that logits vary by `NOISE` S; with a
smaller S, if class means would be further from m than the new images are (with few features).
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np
import scipy.linalg
from jaxtyping import Float
from sklearn.covariance import ledoit_wolf_shrinkage

from clinit.extract.cache.features import FeatureSet
from clinit.extract.cache.head import Head
from clinit.headtrain.heads.array import with_diagonal
from clinit.headtrain.heads.linear import Rows, logit_size, may_win
from clinit.headtrain.heads.repeats import groups_of

USUAL_ROWS, USUAL_CLASSES = 5, 20
RIDGE = 0.5
"""Ridge in the search for the centre, relative to the mean |v_c|^2. With a fifth of it, the centre
for a head of logistic regression on recordings was further off than the new images are."""
OWN, NOISE = 4.5, 1.5
"""Logit of the own class, and deviation of logits within classes, in units of `logit_size`."""
UNSURE = 1.5
"""Number of new images with which half of the covariance allows for what so few do not show; its
share falls with the fourth power. Without it, one image of one class recognised 6 to 53 % of other
images of it on four sets, in place of 23 to 94."""
ROUNDING = 0.9
"""Share of the covariance that is equal in all directions. With 0.5, ViT-tiny recognised 4 points
less of classes of five images."""
BY_MEANS, BETWEEN = 2.0, 0.3
"""Degrees of freedom by which class means tell of the covariance within classes, and the usual
share of it that lies between classes (0.1 to 1.5 on photographs, text and audio)."""
FAR = 1.22
FEW = 8
"""A symmetric root of a covariance of dim / 8 directions takes less time than a triangular one."""


class ShrunkCovariance(NamedTuple):
    """A covariance F^T F + v I: a few images span few directions."""

    factor: Float[np.ndarray, "rows dim"]
    """F."""
    variance: float
    """v."""

    @property
    def trace(self) -> float:
        """Sum of the variances."""
        return float(np.square(self.factor).sum() + self.factor.shape[1] * self.variance)

    def along(self, rows: Float[np.ndarray, "classes dim"]) -> float:
        """Return the variance of the products with these rows, on average of rows."""
        spread = np.square(rows @ self.factor.T).sum(axis=1)
        return float((spread + self.variance * np.square(rows).sum(axis=1)).mean())

    def times(self, factor: float) -> ShrunkCovariance:
        """Return the product with a number."""
        return ShrunkCovariance(np.sqrt(factor) * self.factor, factor * self.variance)

    def within(self, unit: Float[np.ndarray, " dim"]) -> Float[np.ndarray, "dim dim"]:
        """Return the covariance of features that are measured in `unit`."""
        factor = self.factor * unit
        found: np.ndarray = with_diagonal(factor.T @ factor, self.variance * unit**2)
        return found

    def spread(self, noise: Float[np.ndarray, "rows dim"]) -> Float[np.ndarray, "rows dim"]:
        """Return rows of this covariance from rows of covariance I, both in float32."""
        rows, dim = self.factor.shape
        if FEW * rows > dim and dim * self.variance > 1e-5 * self.trace:
            whole = self.within(np.ones(dim)).astype(np.float32)
            root = scipy.linalg.cholesky(whole, overwrite_a=True)
            spread: np.ndarray = scipy.linalg.blas.strmm(1.0, root, noise.T, trans_a=1).T
            return spread
        # With F = U S Q^T, the symmetric root is sqrt(v) I + Q (sqrt(v + S^2) - sqrt(v)) Q^T.
        factor = self.factor.astype(np.float32)
        _, values, directions = np.linalg.svd(factor, full_matrices=False)
        deviation = np.float32(np.sqrt(self.variance))
        gain = np.sqrt(self.variance + values**2) - deviation
        spread = noise @ directions.T * gain @ directions
        spread += deviation * noise
        return spread


class Population(NamedTuple):
    """What the rows of a head, and new images, tell of the images of its classes."""

    means: Float[np.ndarray, "classes dim"]
    deviation: Float[np.ndarray, " dim"]
    """sqrt(D), the unit of each feature."""
    own: ShrunkCovariance
    """Within classes, in these units."""

    @property
    def covariance(self) -> Float[np.ndarray, "dim dim"]:
        """Covariance within classes."""
        return self.own.within(self.deviation)


def guessed_population(head: Head, new: FeatureSet, came_with: int | None = None) -> Population:
    """Estimate the statistics of a head's classes from its rows and new images.

    Args:
        head: The classifier.
        new: Features of images of other classes, at least one, none of which repeats another.
        came_with: Number of classes, first, that were not added to the head; None: all. Centre and
            scale follow from their rows, as rows of added classes have other norms and biases:
            after three single recordings had been added to 35 classes, three more took all old
            images but 2 %.
    """
    deviation, scaled = _scaled(_tamed(new))
    centre, within = _surroundings(scaled)
    offsets, bias = head.weight * deviation, head.bias[:came_with].astype(np.float64)
    some = np.flatnonzero(may_win(Rows(offsets[:came_with], bias), scaled.features))
    offsets -= offsets[some].mean(axis=0)
    trained, bias = offsets[some], bias[some]
    middle, usual = _centre(trained, bias, centre), logit_size(Rows(trained, bias), scaled.features)
    size, rows = np.square(trained).mean(axis=0), len(trained)
    size = (rows * size + USUAL_CLASSES * size.mean()) / (rows + USUAL_CLASSES)
    offsets /= np.sqrt(np.maximum(size, 1e-30))
    own = float((trained * offsets[some]).sum(axis=1).mean()) or 1.0
    offsets *= OWN * usual / own
    far = np.sqrt(float(np.square(offsets[some]).sum(axis=1).mean()) or 1.0)
    near = float(np.sqrt(np.square(scaled.features - middle).sum(axis=1).mean())) / far
    offsets *= min(1.0, near)
    even = (1 - ROUNDING) * within.variance + ROUNDING * within.trace / head.dim or 1.0
    covariance = ShrunkCovariance(np.sqrt(1 - ROUNDING) * within.factor, even)
    noise = covariance.along(trained)
    wanted = (NOISE * min(1.0, near) * usual) ** 2 * (1 + (UNSURE / len(new.labels)) ** 4)
    found = covariance.times(wanted / noise if noise else 1.0)
    return Population((deviation * (middle + offsets)).astype(np.float32), deviation, found)


def distinct(new: FeatureSet) -> FeatureSet:
    """Return one row of each group of rows that repeat each other: their mean."""
    kinds, first, places = np.unique(groups_of(new), return_index=True, return_inverse=True)
    if len(kinds) == len(places):
        return new
    means = np.zeros((len(kinds), new.dim))
    np.add.at(means, places, new.features.astype(np.float64))
    means /= np.bincount(places)[:, None]
    return FeatureSet(means.astype(np.float32), new.labels[first], new.class_names)


def guessed_variances(new: FeatureSet) -> Float[np.ndarray, " dim"]:
    """Estimate the variance of each feature within a class from images of new classes."""
    deviation, scaled = _scaled(_tamed(new))
    found = _surroundings(scaled)[1].trace / new.dim
    usual = float(np.square(scaled.features.astype(np.float64)).mean()) or 1.0
    return np.asarray(deviation**2 * (found or usual))


def _tamed(new: FeatureSet) -> FeatureSet:
    """Return the images, those far from the centre moved towards it.

    They are at most at `FAR` times the median distance. The centre is the mean of the result, as in
    Huber's estimate of location. One of five single images, moved to three times its distance from
    the mean, had widened the guess so far that old recordings went from 84 to 23 %.
    """
    rows = new.features.astype(np.float64)
    centre = rows.mean(axis=0)
    for _ in range(3):
        offsets = rows - centre
        distances = np.sqrt(np.square(offsets).sum(axis=1))
        most = FAR * np.median(distances)
        offsets *= np.minimum(1.0, most / np.maximum(distances, 1e-30))[:, None]
        tamed, centre = centre + offsets, centre + offsets.mean(axis=0)
    return replace(new, features=tamed.astype(np.float32))


def _scaled(new: FeatureSet) -> tuple[Float[np.ndarray, " dim"], FeatureSet]:
    """Return the deviation of each feature, and the features in these units.

    The mean variance counts as `USUAL_ROWS` rows more.
    """
    variance, rows = new.features.astype(np.float64).var(axis=0), len(new.features)
    usual = float(variance.mean()) or 1.0
    deviation = np.sqrt((rows * variance + USUAL_ROWS * usual) / (rows + USUAL_ROWS))
    return deviation, FeatureSet(new.features / deviation, new.labels, new.class_names)


def _centre(
    offsets: Float[np.ndarray, "classes dim"],
    bias: Float[np.ndarray, " classes"],
    near: Float[np.ndarray, " dim"],
) -> Float[np.ndarray, " dim"]:
    """Return the point nearest to `near` at which no class is preferred."""
    preferred, fewer = bias - bias.mean() + offsets @ near, len(offsets) < len(near)
    system = offsets @ offsets.T if fewer else offsets.T @ offsets
    ridge = RIDGE * float(np.square(offsets).sum()) / max(1, len(offsets)) or 1.0
    system[np.diag_indices_from(system)] += ridge
    # (O'O + r I)^-1 O' p = O' (OO' + r I)^-1 p
    if fewer:
        step = offsets.T @ scipy.linalg.solve(system, preferred, assume_a="pos")
    else:
        step = scipy.linalg.solve(system, offsets.T @ preferred, assume_a="pos")
    return np.asarray(near - step)


def _surroundings(new: FeatureSet) -> tuple[Float[np.ndarray, " dim"], ShrunkCovariance]:
    """Return the mean of the class means, and the shrunk covariance: zero of a single image.

    The covariance is taken within classes. The means of classes of n images vary by 1 / n of it and
    by what lies between classes; so they tell of it, too, and count as at most `BY_MEANS` degrees
    of freedom: the second image of one class does not decide alone. If no class has two images, it
    is taken around the mean of all images.
    """
    rows = new.features.astype(np.float64)
    counts = new.counts()
    sums = np.zeros((len(counts), new.dim))
    np.add.at(sums, new.labels, rows)
    means = sums / np.maximum(counts, 1)[:, None]
    present = counts > 0
    number, parts = int(present.sum()), 1 / counts[present]
    centre, free = means[present].mean(axis=0), len(rows) - number
    offsets, around = means[present] - centre, (rows - means[new.labels])[counts[new.labels] > 1]
    share = BY_MEANS / number
    between = np.sqrt(share / (parts + BETWEEN))[:, None] * offsets
    rows, freedom = np.concatenate([around, between]), max(1.0, free + share * (number - 1))
    shrinkage = float(ledoit_wolf_shrinkage(rows, assume_centered=True)) if len(rows) > 1 else 0.0
    even = shrinkage * float(np.square(rows).sum()) / (freedom * rows.shape[1])
    return centre, ShrunkCovariance(np.sqrt((1 - shrinkage) / freedom) * rows, even)

"""What a head alone says about the classes it knows: an estimate of their statistics.

With v_c the row of a class less the mean of all rows, and b_c its bias less the mean of all:

    mu_c = m + g v_c

Rows of a trained head point the way the class means do (NC3: V. Papyan, X. Y. Han, D. L. Donoho,
"Prevalence of neural collapse during the terminal phase of deep learning training", PNAS 2020). At
the centre m of all classes none of them is preferred: m is the point nearest to the mean of the
new classes at which all logits v_c.m + b_c are equal, by least squares with a ridge. The factor g
makes the classes as far from m as the new ones are from their centre. The covariance is that of
the new images within their classes, shrunk because they are few (O. Ledoit, M. Wolf, "A
well-conditioned estimator for large-dimensional covariance matrices", Journal of Multivariate
Analysis 88(2), 2004), made rounder and wider, because images of classes that nobody shows vary in
more ways than a few new ones.
"""

from __future__ import annotations

import numpy as np
import scipy.linalg
from jaxtyping import Float
from sklearn.covariance import ledoit_wolf

from clinit.extract.features import FeatureSet
from clinit.extract.head import Head
from clinit.headtrain.export.memory import Memory, no_rows

RIDGE = 0.1
"""Ridge in the search for the centre, relative to the mean eigenvalue of the rows."""
WIDENING, ROUNDING = 8.0, 0.5
"""Factor of the covariance, and share of it that is the same in all directions: chosen on
photographs with ViT-tiny, where 4 and 0, 4 and 0.5, 8 and 0.1, 16 and 0.1 harm old classes more."""


def memory_of_head(head: Head, new: FeatureSet) -> Memory:
    """Return the statistics of the classes of a head as its rows and new images let one guess.

    Args:
        head: The classifier, with class names.
        new: Features of images of other classes, at least one.
    """
    assert head.class_names is not None
    centre, covariance, spread = _surroundings(new)
    offsets = head.weight.astype(np.float64)
    offsets -= offsets.mean(axis=0)
    factor = np.sqrt(spread / max(float(np.square(offsets).sum(axis=1).mean()), 1e-30))
    means = _centre(offsets, head.bias.astype(np.float64), centre) + factor * offsets
    empty = FeatureSet(new.features[:0], new.labels[:0], head.class_names)
    return Memory(
        class_names=head.class_names,
        counts=np.ones(head.num_classes, dtype=np.int64),
        means=means.astype(np.float32),
        covariance=_widened(covariance).astype(np.float32),
        averaged=head.num_classes,
        freedom=1.0,
        exact=False,
        held_out=empty,
        kept=no_rows(empty),
        backbone={},
    )


def _widened(covariance: Float[np.ndarray, "dim dim"]) -> Float[np.ndarray, "dim dim"]:
    dim = len(covariance)
    even = np.trace(covariance) / dim * np.eye(dim)
    return np.asarray(WIDENING * ((1 - ROUNDING) * covariance + ROUNDING * even))


def _centre(
    offsets: Float[np.ndarray, "classes dim"],
    bias: Float[np.ndarray, " classes"],
    near: Float[np.ndarray, " dim"],
) -> Float[np.ndarray, " dim"]:
    """Return the point near another at which no class is preferred."""
    gram = offsets.T @ offsets
    mean_eigenvalue = float(np.trace(gram)) / len(gram) or 1.0
    system = gram + RIDGE * mean_eigenvalue * np.eye(len(gram))
    preferred = bias - bias.mean() + offsets @ near
    step = scipy.linalg.solve(system, offsets.T @ preferred, assume_a="pos")
    return np.asarray(near - step)


def _surroundings(
    new: FeatureSet,
) -> tuple[Float[np.ndarray, " dim"], Float[np.ndarray, "dim dim"], float]:
    """Return the mean of the class means, the shrunk covariance, and the spread of the means.

    The covariance is that within classes or, where no class has two images, around the mean of
    all; the spread is the mean squared distance of the means from theirs, less what so few images
    per class would have by chance, and at least a tenth of the variance within classes.
    """
    rows = new.features.astype(np.float64)
    counts = new.counts()
    sums = np.zeros((len(counts), new.dim))
    np.add.at(sums, new.labels, rows)
    means = sums / np.maximum(counts, 1)[:, None]
    present = counts > 0
    centre = means[present].mean(axis=0)
    several = counts[new.labels] > 1
    if several.any():
        unbiased = np.sqrt(counts / np.maximum(counts - 1, 1))[new.labels][:, None]
        within = ((rows - means[new.labels]) * unbiased)[several]
        covariance = ledoit_wolf(within, assume_centered=True)[0]
    elif len(rows) > 1:
        covariance = ledoit_wolf(rows)[0]
    else:
        covariance = np.eye(new.dim) * float(np.square(rows).mean())
    variance = float(np.trace(covariance))
    number = int(present.sum())
    found = float(np.square(means[present] - centre).sum()) / max(1, number - 1)
    chance = variance * float((1 / counts[present]).mean())
    return centre, covariance, max(found - chance, 0.1 * variance)

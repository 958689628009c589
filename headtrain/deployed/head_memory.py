"""What a head alone says about the classes it knows: an estimate of their statistics.

If the features of all classes are normal with one covariance Sigma, the softmax classifier for
equal priors has the rows

    w_c = s Sigma^-1 mu_c + a,    b_c = -s/2 mu_c.Sigma^-1 mu_c + const

with any vector a common to all classes; s is 1 for the posterior, and larger for a head that was
trained to be surer. Hence mu_c = m + Sigma v_c / s, with v_c = w_c less the mean of all w_c: the
means of the classes up to their centre m. Sigma and m are taken from the new images, their
covariance within classes (shrunk as by O. Ledoit and M. Wolf, 2004, because they are few) and the
mean of their classes; s is the one at which the centred biases are best explained by

    b_c = -(1 / 2s) v_c.Sigma v_c - v_c.m + const.
"""

from __future__ import annotations

import numpy as np
from jaxtyping import Float
from sklearn.covariance import ledoit_wolf

from clinit.extract.features import FeatureSet
from clinit.extract.head import Head
from clinit.headtrain.export.memory import Memory, no_rows

LEAST_SCALE, MOST_SCALE = 1.0, 100.0


def memory_of_head(head: Head, new: FeatureSet) -> Memory:
    """Return the statistics of the classes of a head as its rows and new images let one guess.

    Args:
        head: The classifier, with class names.
        new: Features of images of other classes, at least one.
    """
    assert head.class_names is not None
    centre, covariance = _surroundings(new)
    offsets = head.weight.astype(np.float64)
    offsets -= offsets.mean(axis=0)
    moved = offsets @ covariance
    scale = _scale(np.sum(moved * offsets, axis=1), head.bias + offsets @ centre)
    empty = FeatureSet(new.features[:0], new.labels[:0], head.class_names)
    return Memory(
        class_names=head.class_names,
        counts=np.ones(head.num_classes, dtype=np.int64),
        means=(centre + moved / scale).astype(np.float32),
        covariance=covariance.astype(np.float32),
        averaged=head.num_classes,
        freedom=1.0,
        held_out=empty,
        kept=no_rows(empty),
        backbone={},
    )


def _surroundings(
    new: FeatureSet,
) -> tuple[Float[np.ndarray, " dim"], Float[np.ndarray, "dim dim"]]:
    """Return the mean of the class means, and the shrunk covariance within classes.

    Where no class has two images, it is that around the mean of all.
    """
    rows = new.features.astype(np.float64)
    counts = new.counts()
    sums = np.zeros((len(counts), new.dim))
    np.add.at(sums, new.labels, rows)
    means = sums / np.maximum(counts, 1)[:, None]
    centre = means[counts > 0].mean(axis=0)
    several = counts[new.labels] > 1
    if len(rows) == 1:
        return centre, np.eye(new.dim) * float(np.square(rows).mean())
    if not several.any():
        return centre, ledoit_wolf(rows, assume_centered=False)[0]
    unbiased = np.sqrt(counts / np.maximum(counts - 1, 1))[new.labels][:, None]
    within = (rows - means[new.labels]) * unbiased
    return centre, ledoit_wolf(within[several], assume_centered=True)[0]


def _scale(squares: Float[np.ndarray, " classes"], biases: Float[np.ndarray, " classes"]) -> float:
    """Return s by least squares of the biases on -1/2 v.Sigma v, within reason."""
    x = -0.5 * (squares - squares.mean())
    slope = float(x @ (biases - biases.mean())) / max(float(x @ x), 1e-30)
    return float(np.clip(1 / max(slope, 1 / MOST_SCALE), LEAST_SCALE, MOST_SCALE))

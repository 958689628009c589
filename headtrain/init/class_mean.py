"""Class-mean rows.

`raw` is the paper's: the mean of the extended feature z = (h, 1), so that weight = mu_c and
bias = 1. `unit` is that of the authors' earlier code: the mean of h / |h|, bias 0.
"""

from __future__ import annotations

import numpy as np

from clinit.headtrain.init.data import NewClasses, Rows
from clinit.headtrain.moments import add_by_class, cut, widen
from clinit.headtrain.statistics import ClassStatistics


def class_mean_rows(data: NewClasses, statistics: ClassStatistics) -> Rows:
    """Return (mu_c, 1) for each new class."""
    means = statistics.class_means[data.start : data.stop]
    return Rows(means, np.ones(len(means)))


def unit_class_mean_rows(data: NewClasses) -> Rows:
    """Return (mean of h / |h|, 0) for each new class; a feature of zeros stays one."""
    new = np.flatnonzero(data.labels >= data.start)
    order = new[np.argsort(data.labels[new], kind="stable")]
    sums = np.zeros((data.stop - data.start, data.features.shape[1]))
    for block, labels in cut(data.features, data.labels, order):
        features = widen(block).astype(np.float64)
        norms = np.linalg.norm(features, axis=1, keepdims=True)
        features /= np.where(norms > 0, norms, 1.0)
        add_by_class(sums, features, labels - data.start)
    return Rows(sums / data.counts[data.start :, None], np.zeros(len(sums)))

"""Class-mean rows.

`raw` is the paper's: the mean of the extended feature z = (h, 1), so that weight = mu_c and
bias = 1. `unit` is that of the authors' earlier code: the mean of h / |h|, bias 0.
"""

from __future__ import annotations

import array_api_compat
import numpy as np

from clinit.headtrain.array import beside, namespace
from clinit.headtrain.init.data import NewClasses, Rows
from clinit.headtrain.moments import add_by_class, cut, widen
from clinit.headtrain.statistics import ClassStatistics


def class_mean_rows(data: NewClasses, statistics: ClassStatistics) -> Rows:
    """Return (mu_c, 1) for each new class."""
    means = statistics.class_means[data.start : data.stop, :]
    return Rows(means, beside(means, np.ones(data.stop - data.start)))


def unit_class_mean_rows(data: NewClasses) -> Rows:
    """Return (mean of h / |h|, 0) for each new class; a feature of zeros stays one."""
    new = np.flatnonzero(data.labels >= data.start)
    order = new[np.argsort(data.labels[new], kind="stable")]
    weight = data.head.weight
    xp, device = namespace(weight), array_api_compat.device(weight)
    classes = data.stop - data.start
    sums = xp.zeros((classes, weight.shape[1]), dtype=xp.float64, device=device)
    for block, labels in cut(data.features, data.labels, order):
        features = xp.astype(widen(block), xp.float64)
        norms = xp.linalg.vector_norm(features, axis=1, keepdims=True)
        features /= xp.where(norms > 0, norms, 1.0)
        add_by_class(sums, features, labels - data.start)
    counts = beside(sums, data.counts[data.start :].astype(np.float64))
    return Rows(sums / counts[:, None], beside(sums, np.zeros(classes)))

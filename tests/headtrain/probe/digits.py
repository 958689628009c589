"""Handwritten digits as a source of features: the pixels."""

from __future__ import annotations

from functools import cache

import numpy as np
from sklearn.datasets import load_digits

from clinit.extract.cache.features import FeatureSet
from clinit.headtrain.stream.source import Source

NAMES = tuple(map(str, range(10)))


@cache
def digits(train: int = 300, val: int = 200, dtype: type = np.float32) -> Source:
    """Return some of the digits, shuffled by seed 0."""
    images, labels = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(labels))
    features, labels = (images[order] / 16).astype(dtype), labels[order].astype(np.int64)
    first, second = slice(0, train), slice(train, train + val)
    return Source(
        FeatureSet(features[first], labels[first], NAMES),
        FeatureSet(features[second], labels[second], NAMES),
        path="digits",
    )

"""Made data of a base and of new classes, one letter per class."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from clinit.extract.cache.features import FeatureSet
from clinit.extract.cache.head import Head
from clinit.headtrain.protocol.stream.source import Source

DIM = 4


def rows(names: Sequence[str], counts: Sequence[int], dim: int = DIM) -> FeatureSet:
    """Rows whose first feature is the letter of their class."""
    labels = np.repeat(np.arange(len(counts)), counts)
    features = np.zeros((len(labels), dim), np.float16)
    features[:, 0] = np.array([ord(names[int(label)]) for label in labels])
    return FeatureSet(features, labels, tuple(names))


def source(names: str, train: Sequence[int], val: Sequence[int], **fields: Any) -> Source:
    dim = fields.pop("dim", DIM)
    return Source(rows(names, train, dim), rows(names, val, dim), **fields)


def head_of(names: Sequence[str] | None, dim: int = DIM, fingerprint: str = "") -> Head:
    count = len(names) if names is not None else 4
    named = tuple(names) if names is not None else None
    return Head(np.zeros((count, dim), np.float32), np.zeros(count, np.float32), named, fingerprint)


BASE = source("abcd", [5] * 4, [2] * 4)
NEW = source("wxyz", [5] * 4, [2] * 4)
HEAD = head_of("abcd")

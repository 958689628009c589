"""Measure a model on held-out images, or on its training images with leave-one-out logits.

The row of a new class is computed from all images of the class. For each image, the logits of rows
computed without it, and without images that repeat it, have a closed form
(`clinit.headtrain.heads.start.left_out`). No image then needs to be held out, and no image is
classified by rows computed from it. Only lambda, and the factor and shift that all new rows share,
have seen all images.

Leave-one-out logits are stored as corrections of the logits of the head: features get one more
number per new class, and the head one more column, which adds this number to the logit.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np
from scipy.stats import rankdata

from clinit.extract.cache.features import FeatureSet
from clinit.extract.cache.head import Head, Top1, accuracy
from clinit.headtrain.heads.array import take, to_numpy
from clinit.headtrain.heads.groups import repeating
from clinit.headtrain.heads.linear import Rows
from clinit.headtrain.heads.losses import LOSSES
from clinit.headtrain.heads.repeats import groups_of
from clinit.headtrain.heads.start.calibration_set import CalibrationSet
from clinit.headtrain.heads.start.left_out import leave_one_out
from clinit.headtrain.heads.start.new_rows import NewClasses
from clinit.headtrain.heads.start.scale import LeftOut
from clinit.headtrain.heads.start.settings import Start
from clinit.headtrain.heads.statistics.solve import least_squares_head
from clinit.headtrain.heads.temperature import (
    LEAST_ROWS,
    Activation,
    Temperature,
    logits_of,
    temperature_of,
)
from clinit.headtrain.model.facts import Known
from clinit.headtrain.model.predict import RULES, scores

MOST_KNOWN = 2048


class Price(NamedTuple):
    """Accuracy on old and new classes if old classes may lose so many points."""

    points: float
    old: Top1
    new: Top1


def first_left_out(images: FeatureSet, head: Head) -> LeftOut | None:
    """Return leave-one-out logits of a first head, which `probe` computed by least squares.

    Here images that repeat each other count as one; `probe` counts each image, so that its head
    differs a little. None if no class has two images that do not repeat each other.
    """
    assert head.origin is not None
    rows, groups, lam = Rows.of_head(head), repeating(groups_of(images)), head.origin["lam"]
    data = NewClasses(images.features, images.labels, rows, 0, head.num_classes, groups=groups)
    if not data.has_pairs:
        return None
    sample, statistics = CalibrationSet.of(data, LOSSES["ce"]).judgeable, data.statistics()
    solved = least_squares_head(statistics, lam)
    logits = leave_one_out(Start(init="least-square"), solved, sample, statistics, lam)
    return LeftOut(data, sample.drawn, logits / head.origin.get("temperature", 1.0))


class Examined(NamedTuple):
    """A head, and the images of old and of new classes on which it is measured."""

    head: Head
    old: FeatureSet
    new: FeatureSet

    @classmethod
    def of(cls, head: Head, found: LeftOut | None, old: FeatureSet, new: FeatureSet) -> Examined:
        """Measure old and new classes on held-out images, or else on leave-one-out logits.

        Args:
            head: A row per class, new classes last.
            found: Leave-one-out logits of the training images.
            old: Held-out images of old classes.
            new: Held-out images of new classes.
        """
        assert head.class_names is not None
        old, new = (rows.named(head.class_names) for rows in (old, new))
        if found is None or (len(old.labels) and len(new.labels)):
            return cls(head, old, new)
        start = found.data.start
        adds = np.eye(head.num_classes, head.num_classes - start, -start, dtype=np.float32)
        wide = replace(head, weight=np.concatenate([head.weight, adds], axis=1))
        is_new, gaps = found.labels >= start, found.logits.cpu().numpy()
        parts = []
        for held, chosen in ((old, ~is_new), (new, is_new)):
            features, labels = held.features[:].astype(np.float32), held.labels
            added = np.zeros((len(labels), len(adds.T)))
            if not len(labels):
                rows = take(found.data.features, found.drawn[chosen])
                features, labels = to_numpy(rows).astype(np.float32), found.labels[chosen]
                added = gaps[chosen] - (features @ head.weight[start:].T + head.bias[start:])
            together = np.concatenate([features, added.astype(np.float32)], axis=1)
            parts.append(FeatureSet(together, labels, head.class_names))
        return cls(wide, *parts)

    def shifted(self, new: int, shift: float) -> Examined:
        """Return the same with larger biases of the last `new` classes."""
        moved = np.arange(self.head.num_classes) >= self.head.num_classes - new
        bias = (self.head.bias + shift * moved).astype(np.float32)
        return self._replace(head=replace(self.head, bias=bias))

    def price(self, points: float) -> Price:
        """Return the accuracy on old and on new classes."""
        return Price(points, accuracy(self.head, self.old), accuracy(self.head, self.new))

    def temperature(self, activation: Activation = "softmax") -> Temperature | None:
        """Return the temperature that fits the head to all images."""
        both = FeatureSet.joined([self.old, self.new], self.new.class_names)
        return temperature_of(self.head, both, activation)

    def known(self, activation: Activation = "softmax") -> Known | None:
        """Return the scores of all images, and the score that best tells unknown images.

        Images of new classes, without the logit of their own class, are images of classes that the
        head lacks. The best score has the largest area under the curve of all against these.
        """
        both = FeatureSet.joined([self.old, self.new], self.new.class_names)
        count = min(len(both.labels), MOST_KNOWN)
        if count < LEAST_ROWS:
            return None
        chosen = np.linspace(0, len(both.labels) - 1, count).astype(np.int64)
        logits = logits_of(self.head, both, chosen)
        without = logits.copy()
        np.put_along_axis(without, both.labels[chosen][:, None], -np.inf, axis=1)
        is_new, areas, levels = chosen >= len(self.old.labels), {}, {}
        for rule in RULES:
            known, unknown = scores(rule, logits, activation), scores(rule, without, activation)
            ranks = rankdata(np.concatenate([known, unknown[is_new]]))
            areas[rule] = float(ranks[:count].sum())
            levels[rule] = tuple(np.sort(known)[count * np.arange(100) // 100].tolist())
        if activation == "sigmoid":  # an energy would sum classes that exclude nothing
            del areas["energy"]
        return Known(rule=max(areas, key=areas.__getitem__), images=count, levels=levels)

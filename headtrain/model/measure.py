"""How well a model knows old and new classes: by images held out, or each left out of its rows.

A row of the head is computed from all images of its class. Its answer to one of them, computed
without this image and those that repeat it, is known exactly if there is a
closed form (`clinit.headtrain.start.left_out`): nothing is held out, and nothing is measured on
learnt images. Factor and shift, two numbers that all new rows share, and lambda stay as they are.

A head with more columns gives these answers, for features with further numbers: the terms to add.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np

from clinit.extract.cache.features import FeatureSet
from clinit.extract.cache.head import Head, Top1, accuracy
from clinit.headtrain.array import take, to_numpy
from clinit.headtrain.groups import groups_of, repeating
from clinit.headtrain.rows import Rows
from clinit.headtrain.start.calibration_set import CalibrationSet
from clinit.headtrain.start.left_out import leave_one_out
from clinit.headtrain.start.new_rows import NewClasses
from clinit.headtrain.start.scale import LOSS, LeftOut
from clinit.headtrain.statistics.solve import least_squares_head
from clinit.headtrain.study.parts import NewShare, Start
from clinit.headtrain.temperature import Temperature, temperature_of


class Balance(NamedTuple):
    """Result of a weight of the new images."""

    new_share: NewShare
    old: Top1
    new: Top1


def first_left_out(images: FeatureSet, head: Head) -> LeftOut:
    """Return the answers of a first head (`fit_head`, least squares) without each of its images.

    Images that repeat each other count as one: if there are some, the head differs a little.
    """
    assert head.origin is not None
    rows, groups, lam = Rows.of_head(head), repeating(groups_of(images)), head.origin["lam"]
    data = NewClasses(images.features, images.labels, rows, 0, head.num_classes, groups=groups)
    sample, statistics = CalibrationSet.of(data, LOSS).judgeable, data.statistics()
    solved = least_squares_head(statistics, lam)
    logits = leave_one_out(Start(init="least-square"), solved, sample, statistics, lam)
    return LeftOut(sample, logits / head.origin.get("temperature", 1.0))


class Examined(NamedTuple):
    """A head, and images of old and of new classes that it is measured on."""

    head: Head
    old: FeatureSet
    new: FeatureSet

    @classmethod
    def of(cls, head: Head, found: LeftOut | None, old: FeatureSet, new: FeatureSet) -> Examined:
        """Take images that are left out of new rows if none of the kind is held out.

        Args:
            head: With a row for each class, the new ones last.
            found: Answers to left-out images.
            old: Held-out images of old classes.
            new: Held-out images of new classes.
        """
        assert head.class_names is not None
        old, new = (rows.named(head.class_names) for rows in (old, new))
        if found is None or (len(old.labels) and len(new.labels)):
            return cls(head, old, new)
        start = found.sample.data.start
        adds = np.eye(head.num_classes, dtype=np.float32)[:, start:]
        wide = replace(head, weight=np.concatenate([head.weight, adds], axis=1))
        is_new, gaps = found.sample.labels >= start, found.logits.cpu().numpy()
        parts = []
        for held, chosen in ((old, ~is_new), (new, is_new)):
            features, labels = held.features[:].astype(np.float32), held.labels
            added = np.zeros((len(labels), len(adds.T)))
            if not len(labels):
                rows = take(found.sample.data.features, found.sample.drawn[chosen])
                features, labels = to_numpy(rows).astype(np.float32), found.sample.labels[chosen]
                added = gaps[chosen] - (features @ head.weight.T + head.bias)[:, start:]
            together = np.concatenate([features, added.astype(np.float32)], axis=1)
            parts.append(FeatureSet(together, labels, head.class_names))
        return cls(wide, *parts)

    def balance(self, new_share: NewShare) -> Balance:
        """Return how well the head knows both."""
        return Balance(new_share, accuracy(self.head, self.old), accuracy(self.head, self.new))

    def temperature(self) -> Temperature | None:
        """Return the temperature of the head for all images."""
        both = FeatureSet.joined([self.old, self.new], self.new.class_names)
        return temperature_of(self.head, both)

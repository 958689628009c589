"""How well a model knows old and new classes: by images held out, or each left out of its rows.

A row of the head is computed from all images of its class. What it would answer to one of them, had
it been computed without this image and those that repeat it, is known exactly where there is a
closed form (`clinit.headtrain.start.left_out`): nothing is held out, and nothing is measured on
what was learnt. Factor and shift, two numbers that all new rows share, and lambda stay as they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from clinit.extract.cache.features import FeatureSet
from clinit.extract.cache.head import Head, Top1
from clinit.headtrain.array import slices, take, to_numpy
from clinit.headtrain.groups import groups_of, repeating
from clinit.headtrain.start.scale import LeftOut
from clinit.headtrain.statistics.class_statistics import ClassStatistics
from clinit.headtrain.statistics.lambda_curve import Judged
from clinit.headtrain.study.parts import NewShare
from clinit.headtrain.temperature import logits_of


class Balance(NamedTuple):
    """What a weight of the new images leads to."""

    new_share: NewShare
    old: Top1
    new: Top1


@dataclass(frozen=True, slots=True, eq=False)
class Answered:
    """Images with labels of a head, and logits that take the place of its last ones."""

    rows: FeatureSet
    own: Float[np.ndarray, "rows last"] | None = None
    """None: the head answers."""

    @classmethod
    def left_out(cls, found: LeftOut, names: tuple[str, ...], *, new: bool) -> Answered:
        """Return the images of the new classes, or those of the old ones, with a name per row."""
        data, labels = found.sample.data, found.sample.labels
        chosen = (labels >= data.start) == new
        features = to_numpy(take(data.features, found.sample.drawn[chosen]))
        return cls(FeatureSet(features, labels[chosen], names), found.logits.cpu().numpy()[chosen])

    @classmethod
    def of_first(cls, images: FeatureSet, head: Head) -> Answered:
        """Return the images of a least-square head of theirs alone (`fit_head`)."""
        assert head.origin is not None
        statistics = ClassStatistics.of(
            images.features, images.labels, num_classes=head.num_classes
        )
        judged = Judged.of(images.features, images.labels, statistics, repeating(groups_of(images)))
        kept = np.zeros(len(images.labels), dtype=bool)
        kept[judged.drawn] = True
        logits = judged.logits(head.origin["lam"]) / head.origin.get("temperature", 1.0)
        return cls(images.part(kept), logits)

    def top1(self, head: Head) -> Top1:
        """Return the accuracy over all classes of the head."""
        labels, correct = self.rows.labels, 0
        numbers = np.arange(len(labels))
        for part in slices(len(labels)):
            logits = logits_of(head, self.rows, numbers[part], self.own)
            correct += int((logits.argmax(axis=1) == labels[part]).sum())
        return Top1(correct, len(labels))


def joined(parts: Sequence[Answered], names: tuple[str, ...]) -> Answered:
    """Return images one behind the other."""
    widths = [part.own.shape[1] for part in parts if part.own is not None]
    own = [
        np.full((len(part.rows.labels), *widths[:1]), np.nan) if part.own is None else part.own
        for part in parts
    ]
    rows = FeatureSet.joined([part.rows for part in parts], names)
    return Answered(rows, np.concatenate(own) if widths else None)

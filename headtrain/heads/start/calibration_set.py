"""The data on which the loss of new rows is measured.

From the logits of all other classes, which stay fixed, a loss needs two numbers per row of data.
They are computed once, block by block; afterwards, the loss of new rows costs no more than their
own logits. These are in-sample logits, or leave-one-out logits
(`clinit.headtrain.heads.start.left_out`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from clinit.headtrain.heads.array import as_tensor, as_type, beside, namespace, slices, take
from clinit.headtrain.heads.groups import balanced_draw
from clinit.headtrain.heads.losses import FixedPart, LocalTerms, Loss
from clinit.headtrain.heads.start.new_rows import NewClasses
from clinit.headtrain.heads.start.settings import NewShare
from clinit.headtrain.heads.statistics.class_statistics import ClassStatistics, row_weights
from clinit.headtrain.heads.statistics.leave_one_out import Unit, blocks_of

Logits = Callable[[Float[Any, "rows dim"], Int[np.ndarray, " rows"]], Float[Any, "rows new"]]
"""Computes logits of new rows from features in float64 and their row numbers in the data."""

SPREAD = 1.0
"""Replaces the variance of old logits if no class is old. It matters only if leave-one-out
logits separate all classes: the right class then leads by about 10."""
NEW_SHARE = 0.2
"""Weight of all new rows together for `--new-share auto`, however many they are."""
BLOCK_LOGITS = 2**24
"""Maximum number of logits at a time: on a CPU up to 4,096 classes, 4,096 rows; memory for more
classes is linear in their number."""
MAX_ROWS = 32_768
"""Maximum number of drawn rows. Far fewer rows determine two numbers well; 73 new classes give
19 MB of logits."""


@dataclass(frozen=True, slots=True, eq=False)
class CalibrationSet:
    """Drawn rows of the data, with everything that the loss needs besides the new logits."""

    data: NewClasses
    loss: Loss
    drawn: Int[np.ndarray, " rows"]
    """Row numbers in the data."""
    target: Int[Tensor, " rows"]
    """Column of the label among the new classes, or -1 if the class is not new."""
    weight: Float[Tensor, " rows"]
    """w_i = 1 / (C n_c) over the drawn rows; a group of repeated rows counts as one. If `new_share`
    is set, old and new rows are rescaled so that new rows have this share of the total weight 1."""
    fixed: FixedPart
    spread: float
    """Variance of the logits of an old row over the data, averaged over old rows, or `SPREAD`."""
    new_share: float | None = None
    """Weight of all new rows together, in (0, 1); None: every class weighs the same."""

    @classmethod
    def of(cls, data: NewClasses, loss: Loss, new_share: NewShare = "classes") -> CalibrationSet:
        """Compute the fixed logits of at most `MAX_ROWS` rows, drawn class by class."""
        drawn, share = balanced_draw(data.labels, MAX_ROWS), share_of(data, new_share)
        labels, weights, dtype = data.labels[drawn], _weights(data, drawn, share), wide_enough(data)
        xp, classes = namespace(data.head.weight), data.head.weight.shape[0]
        before, after = data.head.between(0, data.start), data.head.between(data.stop, classes)
        weight = xp.astype(xp.concat([before.weight, after.weight]), dtype)
        bias = xp.astype(xp.concat([before.bias, after.bias]), dtype)
        fixed, moments = [], []
        most = 4096 if isinstance(weight, np.ndarray) else MAX_ROWS
        for block in slices(len(drawn), max(64, min(most, BLOCK_LOGITS // classes))):
            others = as_type(take(data.features, drawn[block]), dtype) @ weight.T + bias
            logits = as_tensor(others)
            target = np.where(labels[block] < data.start, labels[block], -1)
            part = loss.fixed_part(logits, torch.from_numpy(target).to(logits.device), classes)
            fixed.append((part.log_sum.double(), part.constant.double()))
            old = others[:, : data.start]
            moments.append(weighted_moments(old, beside(old, weights[block])))
        parts = FixedPart(*map(torch.cat, zip(*fixed, strict=True)))
        device = parts.constant.device
        target = np.where(labels >= data.start, labels - data.start, -1)
        return cls(
            data=data,
            loss=loss,
            drawn=drawn,
            target=torch.from_numpy(target).to(device),
            weight=torch.from_numpy(weights).to(device),
            fixed=parts,
            spread=mean_variance(sum(moments)) if data.start else SPREAD,
            new_share=share,
        )

    @property
    def labels(self) -> Int[np.ndarray, " rows"]:
        """The class of each row."""
        return np.asarray(self.data.labels[self.drawn])

    @property
    def judgeable(self) -> CalibrationSet:
        """The rows that can be left out: all but the only row of a new class."""
        alone = self.alone
        return self.subset(~alone) if alone.any() else self

    @property
    def alone(self) -> Bool[np.ndarray, " rows"]:
        """Which rows are the only row of a new class; rows that repeat each other are one."""
        return np.asarray((self.labels >= self.data.start) & (self.data.counts[self.labels] == 1))

    def subset(self, kept: Bool[np.ndarray, " rows"]) -> CalibrationSet:
        """Return the chosen rows, with recomputed weights."""
        rows, drawn = torch.from_numpy(kept).to(self.target.device), self.drawn[kept]
        return replace(
            self,
            drawn=drawn,
            target=self.target[rows],
            weight=torch.from_numpy(_weights(self.data, drawn, self.new_share)).to(rows.device),
            fixed=FixedPart(*(each[rows] for each in self.fixed)),
        )

    def features(self, rows: slice, dtype: Any) -> Float[Any, "rows dim"]:
        """Return the features of some of the drawn rows, as arrays of `dtype`."""
        return as_type(take(self.data.features, self.drawn[rows]), dtype)

    def wide_features(self) -> Float[Tensor, "rows dim"]:
        """Return the features of the drawn rows as one tensor, in `wide_enough` numbers."""
        dtype = wide_enough(self.data)
        return torch.cat([as_tensor(self.features(part, dtype)) for part in slices(len(self))])

    def logits(self, of: Logits) -> Float[Tensor, "rows new"]:
        """Return the logits that new rows give to the drawn rows, in float64."""
        double = namespace(self.data.head.weight).float64
        blocks = [of(self.features(rows, double), self.drawn[rows]) for rows in slices(len(self))]
        return torch.cat([as_tensor(block) for block in blocks])

    def blocks(self, statistics: ClassStatistics) -> tuple[list[Unit], Int[np.ndarray, " rows"]]:
        """Return blocks of rows for leave-one-out logits of least squares, and each row's place.

        If classes weigh the same, the other rows of a new class take over the weight of a left-out
        row. Old classes are not reweighted: there can be thousands of them with one drawn row
        each, and new rows hardly depend on the weight of such a row.
        """
        new = np.arange(self.data.stop) >= self.data.start
        reweighted = new & (statistics.weighting == "class")
        data = self.data
        return blocks_of(data.labels, self.drawn, reweighted, data.counts, data.groups)

    def __len__(self) -> int:
        return len(self.drawn)


def terms_of(
    samples: Sequence[CalibrationSet], logits: Float[Tensor, "rows_of_heads new"], rows: slice
) -> LocalTerms:
    """Expand the losses of several heads for some of the drawn rows in their new logits."""
    first, fixed = samples[0], zip(*(each.fixed for each in samples), strict=True)
    parts = FixedPart(*(torch.cat([each[rows] for each in of_heads]) for of_heads in fixed))
    target = first.target[rows].expand(len(samples), -1).flatten()
    return first.loss.local_terms(logits, target, parts, first.data.head.weight.shape[0])


def joined(found: Iterable[Any], places: Int[np.ndarray, " rows"]) -> Float[Tensor, "rows new"]:
    """Join the logits of blocks of rows; return the rows at `places`."""
    logits = torch.cat([as_tensor(block) for block in found])
    return logits[torch.from_numpy(places).to(logits.device)]


def wide_enough(data: NewClasses) -> Any:
    """Return float64 if the features are stored in float64, else float32.

    Most of the time goes into products with many rows.
    """
    none = take(data.features, slice(0))
    xp = namespace(none)
    return xp.float64 if none.dtype == xp.float64 else xp.float32


def weighted_moments(
    logits: Float[Any, "rows columns"], weight: Float[Any, " rows"]
) -> Float[Any, "2 columns"]:
    """Return the weighted sum of each column, and of the squares of each column."""
    xp = namespace(logits)
    columns = xp.astype(logits, xp.float64, copy=True)
    sums = weight @ columns
    columns *= columns  # in place: a second array of this size would take longer than all else
    return xp.stack([sums, weight @ columns])


def mean_variance(moments: Float[Any, "2 columns"]) -> float:
    """Return the variance of a column, averaged over columns; 0 without columns."""
    if not moments.shape[1]:
        return 0.0
    xp = namespace(moments)
    spread = moments[1, :] - moments[0, :] ** 2
    return float(xp.mean(xp.where(spread > 0, spread, 0.0)))


def share_of(data: NewClasses, new_share: NewShare) -> float | None:
    """Return the weight of all new rows together; None if every class weighs the same."""
    present = data.counts > 0
    of_classes = float(present[data.came_with :].sum() / present.sum())
    if new_share == "classes" or of_classes in (0, 1):
        return None
    if new_share != "auto":
        return None if new_share == of_classes else new_share
    return None if of_classes >= NEW_SHARE else NEW_SHARE


def _weights(
    data: NewClasses, drawn: Int[np.ndarray, " rows"], new_share: float | None
) -> Float[np.ndarray, " rows"]:
    labels = data.labels[drawn]
    weights: np.ndarray = row_weights(np.bincount(labels, minlength=data.stop), "class")[labels]
    if data.shares is not None:
        shares = data.shares[drawn]
        means = np.bincount(labels, shares) / np.maximum(1, np.bincount(labels))
        weights = np.asarray(weights * shares / means[labels])
    is_new = labels >= data.came_with
    if new_share is not None and 0 < np.count_nonzero(is_new) < len(is_new):
        for side, share in ((is_new, new_share), (~is_new, 1 - new_share)):
            weights[side] *= share / weights[side].sum()
    return weights

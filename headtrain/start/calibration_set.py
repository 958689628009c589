"""What stays fixed while new rows are chosen by the loss: the data, and all other logits.

Of the other logits a loss needs two numbers per row of data, which are computed once, block by
block. Choosing new rows then costs no more than the new logits do.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from clinit.headtrain.array import as_tensor, beside, namespace, take, widen
from clinit.headtrain.groups import draw_per_class, water_level
from clinit.headtrain.rows import Rows
from clinit.headtrain.start.new_rows import NewClasses
from clinit.headtrain.statistics.class_statistics import ClassStatistics, row_weights
from clinit.headtrain.statistics.leave_one_out import Unit, blocks_of
from clinit.headtrain.train.losses import FixedPart, LocalTerms, Loss

Logits = Callable[[Float[Any, "rows dim"], Int[np.ndarray, " rows"]], Float[Any, "rows new"]]
"""The logits of new rows for features in float64 and the numbers of these rows of the data."""

BLOCK_ROWS = 4096
MAX_ROWS = 32_768
"""Two numbers are well known from far fewer rows; at 73 new classes this is 19 MB of logits."""


@dataclass(frozen=True, slots=True, eq=False)
class CalibrationSet:
    """Drawn rows of the data, with what the loss needs to know beside the new logits."""

    data: NewClasses
    loss: Loss
    drawn: Int[np.ndarray, " rows"]
    """Numbers of the rows."""
    labels: Int[np.ndarray, " rows"]
    weights: Float[np.ndarray, " rows"]
    """w_i = 1 / (C n_c) over the drawn rows, those that repeat each other counted as one."""
    target: Int[Tensor, " rows"]
    """Column of the label among the new rows, or -1 where it is another row."""
    weight: Float[Tensor, " rows"]
    """`weights` on the device."""
    fixed: FixedPart
    spread: float
    """Variance of the logits of old rows, averaged over these; 0 where there is none."""

    @classmethod
    def of(cls, data: NewClasses, loss: Loss, max_rows: int = MAX_ROWS) -> CalibrationSet:
        """Compute the fixed logits of at most `max_rows` rows, drawn class by class."""
        drawn = balanced_draw(data.labels, max_rows)
        labels = data.labels[drawn]
        weights = _weights(data, drawn)
        dtype = wide_enough(data)
        negatives = _negatives(data, dtype)
        fixed = []
        moments: Any = 0.0
        for block in slices(len(drawn)):
            features = as_type(take(data.features, drawn[block]), dtype)
            others = features @ negatives.weight.T + negatives.bias
            fixed.append(_fixed_part(others, labels[block], data, loss))
            moments += weighted_moments(others[:, : data.start], weights[block])
        parts = FixedPart(*map(torch.cat, zip(*fixed, strict=True)))
        device = parts.constant.device
        new = (labels >= data.start) & (labels < data.stop)
        return cls(
            data=data,
            loss=loss,
            drawn=drawn,
            labels=labels,
            weights=weights,
            target=torch.from_numpy(np.where(new, labels - data.start, -1)).to(device),
            weight=torch.from_numpy(weights).to(device),
            fixed=parts,
            spread=mean_variance(moments),
        )

    @property
    def judgeable(self) -> CalibrationSet:
        """All but new rows that are all that there is of their class: without them, it has none."""
        alone = (self.labels >= self.data.start) & (self.data.counts[self.labels] == 1)
        return self.subset(~alone) if alone.any() else self

    def subset(self, kept: Bool[np.ndarray, " rows"]) -> CalibrationSet:
        """Return some of the rows, weighted anew."""
        labels = self.labels[kept]
        weights = _weights(self.data, self.drawn[kept])
        rows = torch.from_numpy(np.flatnonzero(kept)).to(self.target.device)
        return replace(
            self,
            drawn=self.drawn[kept],
            labels=labels,
            weights=weights,
            target=self.target[rows],
            weight=torch.from_numpy(weights).to(self.target.device),
            fixed=FixedPart(self.fixed.log_sum[rows], self.fixed.constant[rows]),
        )

    def features(self, rows: slice, dtype: Any) -> Float[Any, "rows dim"]:
        """Return the features of some of the drawn rows, as arrays of `dtype`."""
        return as_type(take(self.data.features, self.drawn[rows]), dtype)

    def logits(self, of: Logits) -> Float[Tensor, "rows new"]:
        """Return the logits that new rows give to the drawn rows, in float64."""
        double = namespace(self.data.head.weight).float64
        blocks = [of(self.features(rows, double), self.drawn[rows]) for rows in slices(len(self))]
        return torch.cat([as_tensor(block) for block in blocks])

    def blocks(self, statistics: ClassStatistics) -> tuple[list[Unit], Int[np.ndarray, " rows"]]:
        """Return the rows in blocks for leave-one-out logits of least squares, and their places.

        In averages over classes the new ones are weighted anew. The old ones are not: there can be
        thousands, of which a row each is drawn, and new rows hardly depend on the weight of one.
        """
        new = np.arange(self.data.stop) >= self.data.start
        reweighted = new & (statistics.weighting == "class")
        return blocks_of(self.data.labels, self.drawn, reweighted, self.data.groups)

    def __len__(self) -> int:
        return len(self.drawn)

    @property
    def present(self) -> Int[np.ndarray, " present"]:
        """The classes that have rows."""
        return np.unique(self.labels)

    def terms(self, logits: Float[Tensor, "rows new"], rows: slice) -> LocalTerms:
        """Expand the loss of some of the drawn rows in their new logits."""
        return self.loss.local_terms(
            logits,
            self.target[rows],
            FixedPart(self.fixed.log_sum[rows], self.fixed.constant[rows]),
            self.data.head.weight.shape[0],
        )


def balanced_draw(
    labels: Int[np.ndarray, " rows"], max_rows: int, seed: int = 0
) -> Int[np.ndarray, " drawn"]:
    """Return at most `max_rows` row numbers (at least one per class), the same number per class.

    A class with fewer rows gives all of them. Ascending; the same for the same labels.
    """
    if len(labels) <= max_rows:
        return np.arange(len(labels))
    counts = np.bincount(labels)
    quotas = np.full(len(counts), max(1, water_level(counts, max_rows)))
    return np.flatnonzero(draw_per_class(labels, quotas, seed))


def wide_enough(data: NewClasses) -> Any:
    """Return float64 where the features are stored so, else float32.

    Products with many rows are the bulk of the work.
    """
    none = take(data.features, slice(0))
    xp = namespace(none)
    return xp.float64 if none.dtype == xp.float64 else xp.float32


def slices(rows: int) -> Iterator[slice]:
    """Cut row numbers into blocks."""
    for start in range(0, rows, BLOCK_ROWS):
        yield slice(start, start + BLOCK_ROWS)


def weighted_moments(
    logits: Float[Any, "rows columns"], weights: np.ndarray
) -> Float[Any, "2 columns"]:
    """Return the weighted sums of each column and of its squares."""
    xp = namespace(logits)
    columns, weight = xp.astype(logits, xp.float64, copy=True), beside(logits, weights)
    sums = weight @ columns
    columns *= columns  # in place: a second array of this size would take longer than all else
    return xp.stack([sums, weight @ columns])


def mean_variance(moments: Float[Any, "2 columns"]) -> float:
    """Return the variance of a column, averaged over columns; 0 where there is none."""
    if not moments.shape[1]:
        return 0.0
    xp = namespace(moments)
    spread = moments[1, :] - moments[0, :] ** 2
    return float(xp.mean(xp.where(spread > 0, spread, 0.0)))


def as_type(features: Any, dtype: Any) -> Any:
    """Return features as arrays of `dtype`, without a copy where they are."""
    return namespace(features).astype(widen(features), dtype, copy=False)


def _weights(data: NewClasses, drawn: Int[np.ndarray, " rows"]) -> Float[np.ndarray, " rows"]:
    labels = data.labels[drawn]
    weights: np.ndarray = row_weights(np.bincount(labels, minlength=data.stop), "class")[labels]
    if data.shares is None:
        return weights
    shares = data.shares[drawn]
    means = np.bincount(labels, shares) / np.maximum(1, np.bincount(labels))
    return np.asarray(weights * shares / means[labels])


def _negatives(data: NewClasses, dtype: Any) -> Rows:
    """Return the rows that stay fixed."""
    xp = namespace(data.head.weight)
    before = data.head.between(0, data.start)
    after = data.head.between(data.stop, data.head.weight.shape[0])
    weight = xp.concat([before.weight, after.weight])
    bias = xp.concat([before.bias, after.bias])
    return Rows(xp.astype(weight, dtype), xp.astype(bias, dtype))


def _fixed_part(others: Any, labels: np.ndarray, data: NewClasses, loss: Loss) -> FixedPart:
    logits = as_tensor(others)
    target = torch.from_numpy(np.where(labels < data.start, labels, -1)).to(logits.device)
    part = loss.fixed_part(logits, target, data.head.weight.shape[0])
    return FixedPart(part.log_sum.double(), part.constant.double())

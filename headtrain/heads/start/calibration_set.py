"""The data on which the loss of new rows is measured, and the logits of new rows for them.

From the logits of all other classes, which stay fixed, a loss needs two numbers per row of data.
They are computed once, block by block; afterwards, the loss of new rows costs no more than their
own logits. These are in-sample logits, or leave-one-out logits.

Head rows that were computed from an image recognise this very image. With few images per class, the
logits of training images therefore do not predict the logits of other images. The leave-one-out
logits of an image are the logits of head rows computed without it. Class means and least squares
(`clinit.headtrain.heads.statistics.leave_one_out`) have a closed form. Other rows are computed
again without each of `PARTS` parts of the images, or of a user's function without each image, or
without each of `MOST_PARTS` parts. Images that repeat each other are left out together, and n
counts groups.

The only image of a class is never left out. It is judged by the expected logit of another image:
with u_c = M d, d the difference of h = mu + e from a centre and M symmetric, its own logit contains
e.M e, which the row owes to this very image, on average tr(M S) with S the covariance within
classes. Of least squares, p the share of the class and A the system, which contain h too,

    tr(M S) = p (1 - p - p d.A^-1 d) tr(A^-1 S),    d = h - mean of all rows.

Next to old rows that were drawn from a guess, S is too wide for this, often by a factor of ten. The
logit of another image is then expected to keep `KEPT` of what the own logit has beyond the mean
logit of old images.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from clinit.headtrain.heads.array import (
    Cholesky,
    as_tensor,
    as_type,
    beside,
    namespace,
    slices,
    take,
    to_numpy,
)
from clinit.headtrain.heads.groups import Mask, balanced_draw
from clinit.headtrain.heads.linear import Rows
from clinit.headtrain.heads.losses import FixedPart, LocalTerms, Loss
from clinit.headtrain.heads.start.new_rows import NewClasses, raw_rows, shrunk
from clinit.headtrain.heads.start.settings import NewShare, Start
from clinit.headtrain.heads.statistics.class_statistics import ClassStatistics, row_weights
from clinit.headtrain.heads.statistics.leave_one_out import Answers, Unit, blocks_of
from clinit.headtrain.heads.statistics.moments import add_by_class
from clinit.headtrain.heads.statistics.solve import owed_by_least_squares

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
    classes = first.data.head.weight.shape[0]
    return first.loss.local_terms(logits, target, parts, classes)


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


KEPT = 0.3
"""On photographs, text and audio, other images keep 0.1 to 0.8 of a lead."""
MOST_PARTS, PARTS = 32, 16
"""Maximum number of parts for a user's function, and for other rows that are computed again."""


def in_sample(rows: Rows) -> Logits:
    """Return a function that computes the logits of the given rows."""
    return lambda features, numbers: features @ rows.weight.T + rows.bias


def leave_one_out(
    start: Start,
    rows: Rows,
    sample: CalibrationSet,
    statistics: ClassStatistics | None,
    lam: float | None,
) -> Float[Tensor, "rows new"]:
    """Return the left-out logits of unscaled new rows for the drawn rows of the data.

    Args:
        start: How the rows were computed; neither `zero` nor `random`.
        rows: The new rows with their computed biases; the logits exclude biases if `start.bias`
            is `keep`.
        sample: The data that the rows were computed from, and its drawn rows.
        statistics: Statistics of the data, if `start.reads_statistics` or a row is alone.
        lam: Ridge of least-square rows.
    """
    with_bias = start.bias == "write"

    def again(fewer: NewClasses) -> Rows:
        known = fewer.statistics(start.weighting) if start.reads_statistics else None
        found, factor = raw_rows(start, fewer, known), 1.0
        if start.init == "lda" and known and statistics and statistics.freedom:
            # A class of fewer rows makes the covariance smaller, and all rows longer.
            factor = known.freedom / statistics.freedom
        return Rows(factor * found.weight, (factor if with_bias else 0.0) * found.bias)

    if start.reads_lambda:
        assert lam is not None
        assert statistics is not None
        logits = _least_square_logits(rows, sample, statistics, lam, with_bias)
    elif start.init == "class-mean" and start.class_mean == "raw":
        logits = sample.logits(partial(_means, rows, sample.data, with_bias))
    else:
        parts = without_parts(sample, MOST_PARTS if start.own else PARTS)
        logits = computed_again(sample, parts, lambda part: again(part.data))
    if sample.alone.any() and start.own is None:
        assert statistics is not None
        alone = torch.from_numpy(sample.alone).to(logits.device)
        of = sample.subset(sample.alone)
        logits[alone] = of_other_images(start, rows, of, statistics, lam)
    return logits


def judges_of(
    start: Start, sample: CalibrationSet, statistics: ClassStatistics | None
) -> CalibrationSet:
    """Return the rows that can judge: all, or all but the only row of a new class.

    The latter for a user's function, for which there is no formula, and if no class has two rows,
    which would show how images of a class vary.
    """
    varies = statistics is not None and statistics.freedom > 0
    if sample.data.guessed is not None:  # by the new images
        varies = int(sample.data.counts[sample.data.start :].sum()) > 1
    return sample if varies and start.own is None else sample.judgeable


def of_other_images(
    start: Start, rows: Rows, sample: CalibrationSet, statistics: ClassStatistics, lam: float | None
) -> Float[Tensor, "alone new"]:
    """Return the logits to expect of another image of each class of a single one (`sample`)."""
    data, xp = sample.data, namespace(statistics.gram)
    new, spread = slice(data.start, data.stop), statistics.population_covariance
    size = float(xp.linalg.trace(spread))
    if data.guessed is not None:
        old = xp.mean(statistics.class_means[: data.start, :], axis=0)
        lead = rows.weight * (statistics.class_means[new, :] - old)
        owed = (1 - KEPT) * to_numpy(xp.sum(lead, axis=1))
    elif start.init == "imprint" or start.class_mean == "unit":
        norms = to_numpy(xp.linalg.vector_norm(statistics.class_means[new, :], axis=1))
        owed = np.where(norms > 0, size / np.where(norms > 0, norms, 1.0), 0.0)
    elif start.init == "class-mean":
        owed = np.full(len(rows.bias), size)
    elif start.init == "lda":
        inner = Cholesky.of(shrunk(statistics)).solve(spread)
        owed = np.full(len(rows.bias), float(xp.linalg.trace(inner)))
    else:
        system = Cholesky.ridged(statistics.total_covariance, lam or 0.0)
        centred = statistics.centred_class_means[new, :]
        square = to_numpy(xp.sum(centred * system.solve(centred.T).T, axis=1))
        trace = float(xp.linalg.trace(system.solve(spread)))
        owed = owed_by_least_squares(statistics.shares[new], square, trace)
    bias = rows.bias if start.bias == "write" else xp.zeros_like(rows.bias)
    return less_owed(sample, sample.logits(in_sample(Rows(rows.weight, bias))), owed)


def less_owed(
    sample: CalibrationSet, logits: Float[Tensor, "rows new"], owed: Float[np.ndarray, " new"]
) -> Float[Tensor, "rows new"]:
    """Return logits of new rows, less what the logit of each own class owes to its image."""
    own = torch.from_numpy(owed).to(logits.device)[sample.target]
    return logits.scatter_add(1, sample.target[:, None], -own[:, None])


class Fold(NamedTuple):
    """Data without some of the images, which rows computed from it judge."""

    number: int
    """From 0."""
    judged: Mask
    """Which of the drawn rows are left out."""
    data: NewClasses


def without_parts(sample: CalibrationSet, most: int) -> Iterator[Fold]:
    """Divide images into at most `most` parts, and yield the data without each part.

    Images of a group stay together; the groups of a class are dealt out to the parts one by one.
    Old rows that were drawn from a guess are drawn from another one, which has not seen the part.
    """
    data = sample.data
    groups = np.arange(len(data.labels)) if data.groups is None else data.groups
    pairs = np.stack([data.labels, groups], axis=1)
    kinds, number = np.unique(pairs, axis=0, return_inverse=True)
    parts = number.reshape(-1) % min(len(kinds), most)
    # The only image of a new class is never left out: its logits are not used.
    parts[(data.labels >= data.start) & (data.counts[data.labels] == 1)] = -1
    present = np.unique(parts[sample.drawn][parts[sample.drawn] >= 0])
    for place, part in enumerate(present):
        if data.guessed is not None:
            fewer = data.guessed.anew(data, parts != part)
        else:
            fewer = data.subset(parts != part)
        yield Fold(place, parts[sample.drawn] == part, fewer)


def computed_again(
    sample: CalibrationSet, parts: Iterable[Fold], rows_of: Callable[[Fold], Rows], sets: int = 1
) -> Float[Tensor, "rows columns"]:
    """Return leave-one-out logits from rows, bias included, that are computed without each part.

    `rows_of` may return several `sets` of the new rows, one after another.
    """
    data = sample.data
    logits = np.zeros((len(sample), sets * (data.stop - data.start)))
    for part in parts:
        rows, asked = rows_of(part).on_host(), take(data.features, sample.drawn[part.judged])
        logits[part.judged] = to_numpy(asked) @ rows.weight.T + rows.bias
    return as_tensor(beside(data.head.weight, logits))


def _least_square_logits(
    rows: Rows, sample: CalibrationSet, statistics: ClassStatistics, lam: float, with_bias: bool
) -> Float[Tensor, "rows new"]:
    covariance, mean = statistics.total_covariance, statistics.mean
    system = Cholesky.ridged(covariance, lam)
    direction = system.solve(mean[:, None])[:, 0]
    data, xp = sample.data, namespace(covariance)

    def without(block: Unit) -> Float[Any, "rows new"]:
        numbers, shares = block.all_rows, data.shares
        labels, features = data.labels[numbers], as_type(take(data.features, numbers), xp.float64)
        centred = features - mean
        return Answers(
            scores=features @ rows.weight.T + rows.bias,
            target=np.where(labels >= data.start, labels - data.start, -1),
            weights=statistics.weights[labels] * (1.0 if shares is None else shares[numbers]),
            white=system.half(centred.T).T,
            overlaps=centred @ direction,
            mean_overlap=float(mean @ direction),
            lam=lam,
            bias=None if with_bias else rows.bias,
        ).without(block)

    blocks, places = sample.blocks(statistics)
    return joined(map(without, blocks), places)


def _means(rows: Rows, data: NewClasses, with_bias: bool, features: Any, chosen: np.ndarray) -> Any:
    """Return the logits of class means: weight mu_c, and a bias that is the same for any data."""
    xp, labels = namespace(features), data.labels[chosen]
    products, group = features @ rows.weight.T, features
    if data.groups is not None:
        group = _group_means(features, chosen, data)
    count = beside(features, data.counts[labels].astype(np.float64))
    is_own = beside(features, labels[:, None] == np.arange(data.start, data.stop)[None, :])
    own = xp.sum(xp.where(is_own, products, 0.0), axis=1)
    others = xp.where(count > 1, count - 1, 1.0)
    own = (count * own - xp.sum(features * group, axis=1)) / others
    logits = xp.where(is_own, xp.where(count > 1, own, 0.0)[:, None], products)
    return logits + rows.bias if with_bias else logits


def _group_means(
    features: Float[Any, "rows dim"], numbers: np.ndarray, data: NewClasses
) -> Float[Any, "rows dim"]:
    """Return the mean of the group of each row."""
    xp, shares = namespace(features), data.shares
    assert shares is not None
    assert data.groups is not None
    kinds, places = np.unique(data.groups[numbers], return_inverse=True)
    members = np.flatnonzero(np.isin(data.groups, kinds))
    rows = as_type(take(data.features, members), xp.float64)
    means = xp.zeros_like(features[: len(kinds), :])
    rows = rows * beside(features, shares[members])[:, None]
    add_by_class(means, rows, np.searchsorted(kinds, data.groups[members]))
    return xp.take(means, beside(features, places), axis=0)

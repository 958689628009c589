"""Logits of new rows for the data: in-sample logits, or leave-one-out logits.

Head rows that were computed from an image recognise this very image. With few images per class, the
logits of training images therefore do not predict the logits of other images. The leave-one-out
logits of an image are the logits of head rows computed without it. Most initialisations have a
closed form:

    class mean     the mean of the other n - 1 features of the class
    imprint        the mean of the other n - 1 unit features h / |h|, normalised
    least-square   `clinit.headtrain.heads.statistics.leave_one_out`
    lda            a mean without the row, and a within-class covariance without the outer product
                   w n / (n - 1) d d^T of its deviation d from the mean of its class

Rows of a user's function are computed again without each image in turn, or without each of
`MOST_PARTS` parts of the images if there are more images.

The only image of a class is never left out. It is judged by the expected logit of another image:
with u_c = M d, d the difference of h = mu + e from a centre and M symmetric, its own logit contains
e.M e, which the row owes to this very image, on average tr(M S) with S the covariance within
classes. Of least squares, p the share of the class and A the system, which contain h too,

    tr(M S) = p (1 - p - p d.A^-1 d) tr(A^-1 S),    d = h - mean of all rows.

In the covariance of LDA, all other rows keep their weights. If the left-out image is the only
image of its class, the head row of the class becomes zero.

Rows that repeat each other are left out together: n counts groups, the mean of the group replaces
the row in the formulas of the means, and the covariance loses

    sum_{i in group} w_i d_i d_i^T  +  w / (n - 1) e e^T,    w = sum_{i in group} w_i,

with e the deviation of the mean of the group.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from clinit.headtrain.heads.array import (
    Cholesky,
    as_tensor,
    as_type,
    beside,
    namespace,
    take,
    to_numpy,
)
from clinit.headtrain.heads.linear import Rows
from clinit.headtrain.heads.start.calibration_set import CalibrationSet, Logits, joined
from clinit.headtrain.heads.start.new_rows import (
    SHRINKAGE,
    NewClasses,
    own_rows,
    shrunk,
    unit,
    unit_class_mean_rows,
)
from clinit.headtrain.heads.start.settings import Start
from clinit.headtrain.heads.statistics.class_statistics import ClassStatistics
from clinit.headtrain.heads.statistics.leave_one_out import Answers, Unit, blocks_of
from clinit.headtrain.heads.statistics.moments import add_by_class
from clinit.headtrain.heads.statistics.solve import owed_by_least_squares

MOST_PARTS = 32
"""Maximum number of calls of a user's function for one start."""


def in_sample(rows: Rows) -> Logits:
    """Return a function that computes the logits of the given rows."""
    return lambda features, numbers: features @ rows.weight.T + rows.bias


def leave_one_out(
    start: Start,
    rows: Rows,
    sample: CalibrationSet,
    statistics: ClassStatistics,
    lam: float | None,
) -> Float[Tensor, "rows new"]:
    """Return the left-out logits of unscaled new rows for the drawn rows of the data.

    Args:
        start: How the rows were computed; neither `zero` nor `random`.
        rows: The new rows with their computed biases; the logits exclude biases if `start.bias`
            is `keep`.
        sample: The data that the rows were computed from, and its drawn rows.
        statistics: Statistics of the data.
        lam: Ridge of least-square rows.
    """
    logits = _without_each(start, rows, sample, statistics, lam)
    if sample.alone.any() and start.own is None:
        alone = torch.from_numpy(sample.alone).to(logits.device)
        of = sample.subset(sample.alone)
        logits[alone] = _of_other_images(start, rows, of, statistics, lam)
    return logits


def _without_each(
    start: Start,
    rows: Rows,
    sample: CalibrationSet,
    statistics: ClassStatistics,
    lam: float | None,
) -> Float[Tensor, "rows new"]:
    data, with_bias = sample.data, start.bias == "write"
    if start.own is not None:

        def own(fewer: NewClasses) -> Rows:
            found = own_rows(start, fewer)
            return found if with_bias else Rows(found.weight, 0 * found.bias)

        return computed_again(sample, own, MOST_PARTS)
    if start.init == "imprint" or (start.init == "class-mean" and start.class_mean == "unit"):
        means = unit_class_mean_rows(data).weight
        return sample.logits(partial(_unit_means, means, data, start.init == "imprint"))
    if start.init == "class-mean":
        return sample.logits(partial(_means, rows, data, with_bias))
    if start.init == "lda" and data.groups is not None:
        return _discriminants_without_groups(sample, statistics, with_bias)
    if start.init == "lda":
        return sample.logits(_discriminants(rows, data, statistics, with_bias))
    assert lam is not None
    return _least_square_logits(rows, sample, statistics, lam, with_bias)


def judges_of(start: Start, sample: CalibrationSet, statistics: ClassStatistics) -> CalibrationSet:
    """Return the rows that can judge: all, or all but the only row of a new class.

    The latter for a user's function, for which there is no formula, and if no class has two rows,
    which would show how images of a class vary.
    """
    return sample.judgeable if start.own or not statistics.freedom else sample


def _of_other_images(
    start: Start,
    rows: Rows,
    sample: CalibrationSet,
    statistics: ClassStatistics,
    lam: float | None,
) -> Float[Tensor, "alone new"]:
    """Return the logits to expect of another image of each class of a single one (`sample`)."""
    data, xp = sample.data, namespace(statistics.gram)
    new, spread = slice(data.start, data.stop), statistics.population_covariance
    size = float(xp.linalg.trace(spread))
    if start.init == "imprint" or start.class_mean == "unit":
        norms = to_numpy(xp.linalg.vector_norm(statistics.class_means[new, :], axis=1))
        owed = np.where(norms > 0, size / np.where(norms > 0, norms, 1.0), 0.0)
    elif start.init == "class-mean":
        owed = np.full(len(rows.bias), size)
    elif start.init == "lda":
        inner = Cholesky.of(shrunk(statistics)).solve(spread)
        owed = np.full(len(rows.bias), float(xp.linalg.trace(inner)))
    else:
        system = statistics.total_covariance
        system = Cholesky.of(system + beside(system, (lam or 0.0) * np.eye(statistics.dim)))
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


def computed_again(
    sample: CalibrationSet, rows_of: Callable[[NewClasses], Rows], most: int
) -> Float[Tensor, "rows new"]:
    """Return leave-one-out logits from rows that are computed again without some of the images.

    The images are divided into at most `most` parts, each left out in turn. Images of a group stay
    together; the groups of a class are dealt out to the parts one by one.

    Args:
        sample: The data, and its drawn rows.
        rows_of: Computes the rows, bias included.
        most: Maximum number of calls of `rows_of`.
    """
    data = sample.data
    groups = np.arange(len(data.labels)) if data.groups is None else data.groups
    pairs = np.stack([data.labels, groups], axis=1)
    kinds, number = np.unique(pairs, axis=0, return_inverse=True)
    parts = number.reshape(-1) % min(len(kinds), most)
    # The only image of a new class is never left out: its logits are not used.
    parts[(data.labels >= data.start) & (data.counts[data.labels] == 1)] = -1
    logits = np.zeros((len(sample), data.stop - data.start))
    for part in np.unique(parts[sample.drawn]):
        kept, judged = np.flatnonzero(parts != part), parts[sample.drawn] == part
        groups_kept = None if data.groups is None else data.groups[kept]
        features = take(data.features, kept)
        fewer = replace(data, features=features, labels=data.labels[kept], groups=groups_kept)
        rows, asked = rows_of(fewer).on_host(), take(data.features, sample.drawn[judged])
        logits[judged] = to_numpy(asked) @ rows.weight.T + rows.bias
    return as_tensor(beside(data.head.weight, logits))


def _least_square_logits(
    rows: Rows, sample: CalibrationSet, statistics: ClassStatistics, lam: float, with_bias: bool
) -> Float[Tensor, "rows new"]:
    covariance, mean = statistics.total_covariance, statistics.mean
    system = Cholesky.of(covariance + beside(covariance, lam * np.eye(statistics.dim)))
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


@dataclass(frozen=True, slots=True, eq=False)
class _Own:
    """Class and class size of each row of a block: each row is left out of its own class only."""

    truth: Float[Any, "rows new"]
    """1 at the label of the row, else 0; no 1 if its class is old."""
    count: Float[Any, " rows"]
    """Number of rows of the class of each row; a group of repeated rows counts as one."""

    @classmethod
    def of(cls, logits: Float[Any, "rows new"], numbers: np.ndarray, data: NewClasses) -> _Own:
        labels = data.labels[numbers]
        columns = np.arange(data.start, data.stop)
        truth = (labels[:, None] == columns[None, :]).astype(np.float64)
        return cls(beside(logits, truth), beside(logits, data.counts[labels].astype(np.float64)))

    def replaced(self, logits: Any, own: Any) -> Any:
        """Return the logits with `own` at each row's label, or 0 for the only row of a class."""
        xp = namespace(logits)
        own = xp.where(self.count > 1, own, 0.0)
        return xp.where(self.truth > 0, own[:, None], logits)

    @property
    def others(self) -> Float[Any, " rows"]:
        """Return n - 1; 1 for the only row of a class, to avoid a division by 0."""
        xp = namespace(self.count)
        return xp.where(self.count > 1, self.count - 1, 1.0)

    def picked(self, logits: Any) -> Any:
        """Return the logit at the label of each row; 0 if its class is old."""
        return namespace(logits).sum(self.truth * logits, axis=1)


def _group_means(
    features: Float[Any, "rows dim"], numbers: np.ndarray, data: NewClasses, *, units: bool = False
) -> Float[Any, "rows dim"]:
    """Return the mean of the group of each row; the mean of h / |h| if `units`."""
    xp, shares = namespace(features), data.shares
    assert shares is not None
    assert data.groups is not None
    kinds, places = np.unique(data.groups[numbers], return_inverse=True)
    members = np.flatnonzero(np.isin(data.groups, kinds))
    rows = as_type(take(data.features, members), xp.float64)
    rows = (unit(rows) if units else rows) * beside(features, shares[members])[:, None]
    means = xp.zeros_like(features[: len(kinds), :])
    add_by_class(means, rows, np.searchsorted(kinds, data.groups[members]))
    return xp.take(means, beside(features, places), axis=0)


def _means(
    rows: Rows, data: NewClasses, with_bias: bool, features: Any, numbers: np.ndarray
) -> Any:
    """Return the logits of class means: weight mu_c, and a bias that is the same for any data."""
    xp, products = namespace(features), features @ rows.weight.T
    own = _Own.of(products, numbers, data)
    group = features if data.groups is None else _group_means(features, numbers, data)
    removed = xp.sum(features * group, axis=1)
    without = (own.count * own.picked(products) - removed) / own.others
    logits = own.replaced(products, without)
    return logits + rows.bias if with_bias else logits


def _unit_means(
    means: Any, data: NewClasses, normalised: bool, features: Any, numbers: np.ndarray
) -> Any:
    """Return the logits of means of h / |h|, which are normalised again if `normalised`."""
    xp, products = namespace(features), features @ means.T
    own = _Own.of(products, numbers, data)
    if data.groups is None:
        removed = xp.linalg.vector_norm(features, axis=1)
        overlap = own.picked(products) / xp.where(removed > 0, removed, 1.0)
        size = xp.astype(removed > 0, xp.float64)  # 0 for a feature of zeros
    else:
        group = _group_means(features, numbers, data, units=True)
        removed = xp.sum(group * features, axis=1)
        overlap = own.picked(group @ means.T)
        size = xp.sum(group**2, axis=1)
    total = own.count * own.picked(products) - removed  # sum of the other units, times h
    if not normalised:
        return own.replaced(products, total / own.others)
    squares = xp.sum(means**2, axis=1)
    square = own.count**2 * (own.truth @ squares) - 2 * own.count * overlap + size
    norms = xp.sqrt(xp.where(squares > 0, squares, 1.0))
    length = xp.sqrt(xp.where(square > 0, square, 1.0))
    return own.replaced(products / norms, total / length)


def _discriminants(
    rows: Rows, data: NewClasses, statistics: ClassStatistics, with_bias: bool
) -> Logits:
    """Return the logits of discriminants: weight P mu_c and bias -1/2 mu_c.P mu_c.

    P is the inverse of the shrunk covariance.
    """
    class_means, system = statistics.class_means, Cholesky.of(shrunk(statistics))
    new, half = class_means[data.start : data.stop, :], 0.5 if with_bias else 0.0
    squares = namespace(new).sum(rows.weight * new, axis=1)  # mu_c.P mu_c

    def logits(features: Any, numbers: np.ndarray) -> Any:
        xp, labels = namespace(features), data.labels[numbers]
        products = features @ rows.weight.T  # mu_k.P h
        own = _Own.of(products, numbers, data)
        deviation = features - xp.take(class_means, beside(features, labels), axis=0)
        solved = system.solve(deviation.T).T  # P d
        size = xp.sum(solved * deviation, axis=1)  # d.P d
        at_row = xp.sum(solved * features, axis=1)  # d.P h
        at_means = solved @ new.T  # mu_k.P d
        weights = beside(features, statistics.weights[labels])
        removed = (1 - SHRINKAGE) * weights * own.count / own.others
        gain = removed / (1 - removed * size)
        scores = products - half * squares
        scores = scores + gain[:, None] * at_means * (at_row[:, None] - half * at_means)
        mean_at_row = own.picked(products) - at_row / own.others
        mean_at_deviation = own.picked(at_means) - size / own.others
        square = own.truth @ squares - 2 * own.picked(at_means) / own.others
        square = square + size / own.others**2
        without = mean_at_row - half * square
        without = without + gain * mean_at_deviation * (at_row - half * mean_at_deviation)
        return own.replaced(scores, without)

    return logits


def _discriminants_without_groups(
    sample: CalibrationSet, statistics: ClassStatistics, with_bias: bool
) -> Float[Tensor, "rows new"]:
    """Return the logits of discriminants computed without the group of each row.

    In coordinates in which P is the identity, the covariance loses V^T diag(r) V, where V contains
    the deviations of the rows of the group and of their mean. Hence
    x.P_- y = x.y + (V x).C (V y) with C = (diag(1/r) - V V^T)^-1.
    """
    data, half, system = sample.data, 0.5 if with_bias else 0.0, Cholesky.of(shrunk(statistics))
    xp, means = namespace(statistics.gram), system.half(statistics.class_means.T).T
    new, shares = means[data.start : data.stop, :], data.shares
    assert shares is not None

    def without(block: Unit) -> Float[Any, "rows new"]:
        (units, n), labels = block.rows.shape, data.labels[block.rows[:, 0]]
        features = as_type(take(data.features, block.all_rows), xp.float64)
        rows = xp.reshape(system.half(features.T).T, (units, n, -1))
        of_class = xp.take(means, beside(means, labels), axis=0)[:, None, :]
        deviations = xp.concat([rows, xp.mean(rows, axis=1, keepdims=True)], axis=1) - of_class
        others = np.maximum(data.counts[labels] - 1, 1)[:, None]
        weights = (1 - SHRINKAGE) * statistics.weights[labels][:, None]
        removed = weights * np.concatenate([shares[block.rows], 1 / others], axis=1)
        gram = deviations @ xp.matrix_transpose(deviations)
        inner = xp.linalg.inv(beside(means, np.eye(n + 1) / removed[:, :, None]) - gram)
        fewer = of_class - deviations[:, -1:, :] / beside(means, others)[:, :, None]
        scores, own_scores = (
            xp.reshape(_downdated(rows, classes, deviations, inner, half), (units * n, -1))
            for classes in (new[None, :, :], fewer)
        )
        return _Own.of(scores, block.all_rows, data).replaced(scores, own_scores[:, 0])

    none = np.zeros(data.stop, dtype=bool)
    blocks, places = blocks_of(data.labels, sample.drawn, none, data.groups)
    return joined(map(without, blocks), places)


def _downdated(rows: Any, classes: Any, deviations: Any, inner: Any, half: float) -> Any:
    """Return mu.P_- h - half mu.P_- mu for each row h of a unit and each mean mu of `classes`."""
    xp = namespace(rows)
    turned = xp.matrix_transpose(deviations)
    at_means = classes @ turned @ inner
    squares = xp.sum(classes**2, axis=2) + xp.sum(at_means * (classes @ turned), axis=2)
    products = rows @ xp.matrix_transpose(classes)
    products = products + rows @ turned @ xp.matrix_transpose(at_means)
    return products - half * squares[:, None, :]

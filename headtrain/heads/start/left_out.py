"""Logits of new rows for images that the rows were computed without.

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

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any, NamedTuple

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
from clinit.headtrain.heads.groups import Mask
from clinit.headtrain.heads.linear import Rows
from clinit.headtrain.heads.start.calibration_set import CalibrationSet, Logits, joined
from clinit.headtrain.heads.start.new_rows import NewClasses, raw_rows, shrunk
from clinit.headtrain.heads.start.settings import Start
from clinit.headtrain.heads.statistics.class_statistics import ClassStatistics
from clinit.headtrain.heads.statistics.leave_one_out import Answers, Unit
from clinit.headtrain.heads.statistics.moments import add_by_class
from clinit.headtrain.heads.statistics.solve import bias_share, owed_by_least_squares

KEPT = 0.25
"""Other images keep 0.1 to 0.6 of a lead on photographs, text and audio, on average 0.25."""
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
        logits = _least_square_logits(start, rows, sample, statistics, lam)
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
    start: Start, rows: Rows, sample: CalibrationSet, statistics: ClassStatistics, lam: float
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
            rho=bias_share(lam, start.holds_bias),
            bias=None if start.bias == "write" else rows.bias,
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

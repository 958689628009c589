"""Lambda of least-square rows by the loss of the training, for `--lambda auto`.

For each lambda of a grid, `loss_curve` computes the leave-one-out logits of the new rows over
buffer and new task, the factor (at least 0) and shift of the least loss on these logits, and this
loss; all other logits stay fixed. One eigendecomposition serves all lambdas, and each fit starts
from the result of the previous fit.

The grid has half-decade steps around the largest eigenvalue: every third lambda is tried first,
then the neighbours of the best. After the first task of a head, the search starts at its last
lambda, which leaves a few to try.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from clinit.headtrain.heads.array import as_tensor, as_type, namespace, take
from clinit.headtrain.heads.groups import balanced_draw
from clinit.headtrain.heads.start.calibrate import Search, calibrate
from clinit.headtrain.heads.start.calibration_set import CalibrationSet, joined
from clinit.headtrain.heads.start.left_out import less_owed
from clinit.headtrain.heads.start.settings import Start
from clinit.headtrain.heads.statistics.leave_one_out import Unit
from clinit.headtrain.heads.statistics.solve import LambdaCurve, LambdaPath

MAX_ROWS, MOST_PRODUCTS = 8192, 2**36
"""Maximum number of rows on which lambdas are compared, and of the products that each of their
numbers takes with all others: 4,096 rows of 4,096 features."""
ABOVE, BELOW = 4, 10
"""Half decades above and below the largest eigenvalue."""
MOST_BELOW, STRIDE = 20, 3
SHARED_BYTES = 2**23
"""Maximum size of logits at one lambda that are kept for other heads."""


def compared(sample: CalibrationSet) -> CalibrationSet:
    """Return the rows on which lambdas are compared: at most `MAX_ROWS`."""
    most = min(MAX_ROWS, MOST_PRODUCTS // sample.data.head.weight.shape[1] ** 2)
    if len(sample) <= most:
        return sample
    drawn = np.zeros(len(sample), dtype=bool)
    drawn[balanced_draw(sample.labels, most)] = True
    return sample.subset(drawn)


def loss_curve(
    sample: CalibrationSet, path: LambdaPath, start: Start, *, near: float | None = None
) -> Search[LambdaCurve | None]:
    """Return the leave-one-out loss of calibrated rows at the lambdas that the search has tried.

    From the best lambda of a coarse grid, or from `near`, the search goes on to better neighbours
    until there is none. Return None if no lambda is better than rows of zeros.
    """
    search, centre = _Search(sample, path, start), _half_decades(path)
    lowest, highest = centre - MOST_BELOW, centre + ABOVE
    yield from search.begin()
    losses: dict[int, float] = {}

    def best_of(*steps: int) -> Search[int]:
        """Try the lambdas of some numbers of half decades that are left; return the best yet."""
        for step in steps:
            if step not in losses and lowest <= step <= highest:
                losses[step] = yield from search.loss(_lambda(step))
        return min(losses, key=losses.__getitem__)

    first = highest if near is None else round(2 * math.log10(near))
    best = yield from best_of(min(max(first, lowest), highest))
    if near is None or losses[best] >= search.without:
        for step in range(highest, lowest - 1, -STRIDE):
            best = yield from best_of(step)
            if step < centre - BELOW and losses[best] < losses[step]:
                break
    while best != (best := (yield from best_of(best - 1, best + 1))):
        pass
    if losses[best] >= search.without:
        return None
    steps = sorted(losses)
    lams, found = (_lambda(step) for step in steps), (losses[step] for step in steps)
    return LambdaCurve(tuple(lams), tuple(found), "leave-one-out loss")


def safe_lambda(path: LambdaPath) -> float:
    """Return a lambda for data from which nothing can be left out: about the largest eigenvalue.

    Rows are then nearly proportional to the class means minus the mean of all classes.
    """
    return _lambda(_half_decades(path) - 1)


def _half_decades(path: LambdaPath) -> int:
    """Return the number of half decades of the largest eigenvalue."""
    value = float(path.eigenvalues[-1])
    return round(2 * math.log10(value)) if value > 0 else 0


def _lambda(half_decades: int) -> float:
    decade, half = divmod(half_decades, 2)
    return float(f"{3 if half else 1}e{decade}")


def logits_of(
    sample: CalibrationSet, path: LambdaPath, start: Start, lam: float
) -> Float[Tensor, "rows new"] | None:
    """Return the leave-one-out logits at a lambda, if `loss_curve` has computed and kept them."""
    found = path.shared.get(_key(sample, start), {}).get(lam)
    return None if found is None else found.clone()


def _key(sample: CalibrationSet, start: Start) -> tuple[Any, ...]:
    """Return all, besides lambda, that the leave-one-out logits of a path depend on."""
    return sample.drawn.tobytes(), start.bias, start.holds_bias


class _Search:
    """Calibrates the new rows at one lambda after another."""

    def __init__(self, sample: CalibrationSet, path: LambdaPath, start: Start) -> None:
        self._sample, self._path = sample, path
        self._options = {"with_bias": start.bias == "write", "holds_bias": start.holds_bias}
        self._alone = torch.from_numpy(sample.alone).to(sample.target.device)
        self._singles = sample.subset(sample.alone)
        self._known = path.shared.setdefault(_key(sample, start), {})
        """Coordinates, and logits by lambda: heads of one bank share them."""
        self._end = np.array([1.0, 0.0])
        """Factor, for logits of variance 1, and shift at the end of the last search."""

    def begin(self) -> Search[None]:
        """Compute the loss of rows of zeros."""
        sample = self._sample
        zeros = sample.weight.new_zeros(len(sample), sample.data.stop - sample.data.start)
        _, self.without = yield from self._calibrated(zeros)

    def loss(self, lam: float) -> Search[float]:
        """Return the class-balanced loss at a lambda, with a factor of at least 0."""
        if (logits := self._known.get(lam)) is None:
            logits = self._logits(lam)
            if logits.nbytes <= SHARED_BYTES:
                self._known[lam] = logits
        factor, loss = yield from self._calibrated(logits)
        return loss if factor > 0 else self.without

    @property
    def _coordinates(
        self,
    ) -> tuple[list[tuple[Unit, Any]], Int[np.ndarray, " rows"], tuple[Any, Any] | None]:
        """Blocks of rows in the eigenbasis, the place of each row, and rows that are alone.

        The latter with the variances of images of one class.
        """
        if None not in self._known:
            path, features = self._path, self._sample.data.features
            double = namespace(path.basis).float64
            units, places = self._sample.blocks(path.statistics)
            parts = (path.coordinates(as_type(take(features, u.all_rows), double)) for u in units)
            own = None
            if len(self._singles):
                alone = path.coordinates(self._singles.features(slice(None), double))
                own = alone, path.variances(path.statistics.population_covariance)
            self._known[None] = list(zip(units, parts, strict=True)), places, own
        return self._known[None]  # type: ignore[no-any-return]

    def _logits(self, lam: float) -> Float[Tensor, "rows new"]:
        """Return the leave-one-out logits at a lambda."""
        data, (blocks, places, own) = self._sample.data, self._coordinates
        new = slice(data.start, data.stop)
        left_out = (
            self._path.left_out(
                coordinates, data.labels, lam, unit, new, shares=data.shares, **self._options
            )
            for unit, coordinates in blocks
        )
        logits = joined(left_out, places)
        if own is not None:
            scores, owed = self._path.of_other_rows(*own, lam, new, **self._options)
            logits[self._alone] = less_owed(self._singles, as_tensor(scores), owed)
        return logits

    def _calibrated(self, logits: Float[Tensor, "rows new"]) -> Search[tuple[float, float]]:
        size = np.array([float(logits.std()) or 1.0, 1.0])
        found = yield from calibrate(self._sample, logits, [self._end / size])
        self._end = np.array([found.factor, found.shift]) * size
        return found.factor, found.loss_after

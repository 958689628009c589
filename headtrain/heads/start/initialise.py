"""Initialise the rows of new classes of one head, from raw rows to scaled or fitted rows.

`--lambda auto` chooses the ridge of least-square rows by the loss of the training. For each lambda
of a grid, it computes the leave-one-out logits of the new rows over buffer and new task, the factor
(at least 0) and shift of the least loss on these logits (`calibrate`), and this loss; all other
logits stay fixed. One eigendecomposition serves all lambdas, and each fit starts from the result of
the previous fit. The grid has half-decade steps around the largest eigenvalue: every third lambda
is tried first, then the neighbours of the best. After the first task of a head, the search starts
at its last lambda, which leaves a few to try.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from clinit.headtrain.heads.array import as_tensor, as_type, library, namespace, take
from clinit.headtrain.heads.groups import balanced_draw
from clinit.headtrain.heads.linear import Rows
from clinit.headtrain.heads.losses import LOSSES
from clinit.headtrain.heads.start.calibrate import Objective, affine, fit, minimise, scaled
from clinit.headtrain.heads.start.calibration_set import CalibrationSet, joined
from clinit.headtrain.heads.start.discriminant import discriminant_rows
from clinit.headtrain.heads.start.left_out import computed_again, judges_of, less_owed
from clinit.headtrain.heads.start.new_rows import NewClasses, raw_rows
from clinit.headtrain.heads.start.scale import Initialisation, LeftOut
from clinit.headtrain.heads.start.settings import Start
from clinit.headtrain.heads.statistics.class_statistics import ClassStatistics
from clinit.headtrain.heads.statistics.leave_one_out import Unit
from clinit.headtrain.heads.statistics.solve import LambdaCurve, LambdaPath
from clinit.machine import Stopwatch

MAX_ROWS = 8192
"""Maximum number of rows on which lambdas are compared."""
ABOVE, BELOW = 4, 10
"""Half decades above and below the largest eigenvalue."""
MOST_BELOW, STRIDE = 20, 3
SHARED_BYTES = 2**22
"""Maximum size of logits at one lambda that are kept for other heads."""
PARTS = 5
"""Number of parts that are left out in turn for the leave-one-out logits of fitted rows."""


def initialise(
    start: Start,
    data: NewClasses,
    *,
    loss: str = "ce",
    statistics: ClassStatistics | None = None,
    path: LambdaPath | None = None,
    near: float | None = None,
    watch: Stopwatch | None = None,
) -> Initialisation:
    """Return the rows [start, stop) of the head.

    Args:
        start: Kind and scale of the rows.
        data: The data and the head, which contains the random draw that `random` returns.
        loss: Loss of the training, used for calibration, the choice of lambda and the fit. If it
            is a user's function, whose Hessian is unknown, cross entropy is used instead.
        statistics: `data.statistics()`, if already computed.
        path: Least-square heads of these statistics for all lambdas, if already computed.
        near: The lambda of the previous task, where the search for the best one starts.
        watch: Measures the phases `lambda`, `solve`, `calibrate` and `fit`.

    Raises:
        ValueError: If a new class has no row.
    """
    if start.init == "random":
        return Initialisation(data.stale)
    empty = np.flatnonzero(data.counts[data.start :] == 0) + data.start
    if len(empty):
        raise ValueError(f"no sample of the new classes in head rows {empty.tolist()}")
    watch = watch or Stopwatch()
    if start.init == "discriminant":
        with watch.phase("fit"):
            return discriminant_rows(data, start.max_old_loss, independent=loss == "bce")
    if start.reads_statistics and statistics is None:
        statistics = data.statistics(start.weighting)
    sample = None
    if start.looks_around:
        with watch.phase("calibrate"):
            judge = LOSSES.get(loss, LOSSES["ce"])
            sample = CalibrationSet.of(data, judge, start.new_share)
    lam, curve = None, None
    if start.chooses_lambda:
        assert sample is not None
        assert statistics is not None
        with watch.phase("lambda"):
            path, judges = path or LambdaPath.of(statistics), judges_of(start, sample, statistics)
            if bool((judges.target >= 0).any()):
                curve = loss_curve(judges, path, with_bias=start.bias == "write", near=near)
            # If no row can judge, or rows of zeros beat every lambda, there is no curve.
            lam = curve.best if curve is not None else safe_lambda(path)
    elif start.reads_lambda:
        lam = float(start.ridge_parameter)
    with watch.phase("solve"):
        rows = raw_rows(start, data, statistics, lam)
    with watch.phase("calibrate"):
        raw = Initialisation(rows, lam=lam, curve=curve, library=library(rows.weight))
        found = scaled(raw, start, data, sample, statistics)
    if start.init != "fitted" or not data.has_old_rows:
        return found
    assert sample is not None
    with watch.phase("fit"):
        end = fit(sample, found.rows, start.fit_ridge, fits_bias=start.bias == "write")
    judged = sample.judgeable

    def again(fewer: NewClasses) -> Rows:
        around = CalibrationSet.of(fewer, sample.loss, start.new_share)
        raw = raw_rows(start, fewer, fewer.statistics(start.weighting), lam)
        kept = fewer.stale.bias if start.bias == "keep" else None
        begin = affine(raw, np.full(len(raw.bias), found.factor), found.shift, kept)
        return fit(around, begin, start.fit_ridge, fits_bias=kept is None).rows

    def left_out(seen_by: Callable[[NewClasses], NewClasses] = lambda fewer: fewer) -> LeftOut:
        logits = computed_again(judged, lambda fewer: again(seen_by(fewer)), PARTS)
        return LeftOut(data, judged.drawn, logits)

    return replace(found, left_out=left_out, **end._asdict())


def loss_curve(
    sample: CalibrationSet, path: LambdaPath, *, with_bias: bool = True, near: float | None = None
) -> LambdaCurve | None:
    """Return the leave-one-out loss of calibrated rows at the lambdas that the search has tried.

    From the best lambda of a coarse grid, or from `near`, the search goes on to better neighbours
    until there is none. Return None if no lambda is better than rows of zeros.
    """
    if len(sample) > MAX_ROWS:
        drawn = np.zeros(len(sample), dtype=bool)
        drawn[balanced_draw(sample.labels, MAX_ROWS)] = True
        sample = sample.subset(drawn)
    search, centre = _Search(sample, path, with_bias), _half_decades(path)
    lowest, highest = centre - MOST_BELOW, centre + ABOVE
    losses: dict[int, float] = {}

    def best_of(steps: Iterable[int]) -> int:
        """Try the lambdas of some numbers of half decades that are left; return the best yet."""
        for step in steps:
            if step not in losses and lowest <= step <= highest:
                losses[step] = search.loss(_lambda(step))
        return min(losses, key=losses.__getitem__)

    start = highest if near is None else round(2 * math.log10(near))
    best = best_of([min(max(start, lowest), highest)])
    if near is None or losses[best] >= search.without:
        for step in range(highest, lowest - 1, -STRIDE):
            best = best_of([step])
            if step < centre - BELOW and losses[best] < losses[step]:
                break
    while best != (best := best_of([best - 1, best + 1])):
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


class _Search:
    """Calibrates the new rows at one lambda after another."""

    def __init__(self, sample: CalibrationSet, path: LambdaPath, with_bias: bool) -> None:
        self._sample, self._path, self._with_bias = sample, path, with_bias
        self._alone = torch.from_numpy(sample.alone).to(sample.target.device)
        self._singles = sample.subset(sample.alone)
        self._known = path.shared.setdefault((sample.drawn.tobytes(), with_bias), {})
        """Logits by lambda, which do not depend on the head: heads of one bank share them."""
        self._end = np.array([1.0, 0.0])
        """Factor, for logits of variance 1, and shift at the end of the last search."""
        zeros = sample.weight.new_zeros(len(sample), sample.data.stop - sample.data.start)
        _, self.without = self._calibrated(zeros)
        """Loss of rows of zeros."""

    def loss(self, lam: float) -> float:
        """Return the class-balanced loss at a lambda, with a factor of at least 0."""
        if (logits := self._known.get(lam)) is None:
            logits = self._logits(lam)
            if logits.nbytes <= SHARED_BYTES:
                self._known[lam] = logits
        factor, loss = self._calibrated(logits)
        return loss if factor > 0 else self.without

    @cached_property
    def _coordinates(self) -> tuple[list[tuple[Unit, Any]], Int[np.ndarray, " rows"], Any]:
        """Blocks of rows in the eigenbasis, the place of each row, and the rows that are alone."""
        path, double = self._path, namespace(self._path.basis).float64
        units, places = self._sample.blocks(path.statistics)
        features = self._sample.data.features
        parts = (path.coordinates(as_type(take(features, u.all_rows), double)) for u in units)
        blocks = list(zip(units, parts, strict=True))
        return blocks, places, path.coordinates(self._singles.features(slice(None), double))

    def _logits(self, lam: float) -> Float[Tensor, "rows new"]:
        """Return the leave-one-out logits at a lambda."""
        data, (blocks, places, own) = self._sample.data, self._coordinates
        new = slice(data.start, data.stop)
        left_out = (
            self._path.left_out(
                coordinates, data.labels, lam, unit, new,
                shares=data.shares, with_bias=self._with_bias,
            )
            for unit, coordinates in blocks
        )  # fmt: skip
        logits = joined(left_out, places)
        if len(self._singles):
            scores, owed = self._path.of_other_rows(own, lam, new, with_bias=self._with_bias)
            logits[self._alone] = less_owed(self._singles, as_tensor(scores), owed)
        return logits

    def _calibrated(self, logits: Float[Tensor, "rows new"]) -> tuple[float, float]:
        size = np.array([float(logits.std()) or 1.0, 1.0])
        objective = Objective.of(self._sample, logits)
        start = self._end / size
        found, lowest, _ = minimise(objective, start, objective.expansion(start))
        self._end = found * size
        return float(found[0]), lowest - objective.penalty(found)

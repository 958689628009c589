"""The rows of new classes, at their scale: `initialise` does all of it for one head.

The ridge of least-square rows is chosen by the loss that they will be trained with. For each lambda
of a grid: the leave-one-out logits of the new rows over buffer and new task, factor (at least 0)
and shift of the least loss on these (`calibrate`), and that loss; all other logits stay as they
are. One eigendecomposition serves all lambdas, and each search starts at the end of the last one.
The grid has half decades around the eigenvalues, and more if its lower edge is best.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
from jaxtyping import Float
from torch import Tensor

from clinit.headtrain.array import as_type, library, namespace, take
from clinit.headtrain.rows import Rows
from clinit.headtrain.start.calibrate import Objective, fit, minimise
from clinit.headtrain.start.calibration_set import CalibrationSet, balanced_draw, joined
from clinit.headtrain.start.left_out import computed_again
from clinit.headtrain.start.new_rows import NewClasses, raw_rows
from clinit.headtrain.start.scale import Initialisation, LeftOut, scaled
from clinit.headtrain.statistics.class_statistics import ClassStatistics
from clinit.headtrain.statistics.lambda_curve import LambdaCurve, lambda_curve
from clinit.headtrain.statistics.solve import LambdaPath
from clinit.headtrain.study.parts import Start
from clinit.headtrain.train.losses import LOSSES
from clinit.stopwatch import Stopwatch

MAX_ROWS = 8192
"""The draw that lambdas are compared on."""
ABOVE, BELOW = 4, 10
"""Half decades above and below the largest eigenvalue."""
MOST_BELOW = 20
PARTS = 10
"""Fits for the answers of fitted rows to images that are left out."""


def initialise(
    start: Start,
    data: NewClasses,
    *,
    loss: str = "ce",
    travel: float = math.inf,
    statistics: ClassStatistics | None = None,
    path: LambdaPath | None = None,
    watch: Stopwatch | None = None,
) -> Initialisation:
    """Return the rows [start, stop) of the head.

    Args:
        start: Which rows at which scale.
        data: The data and the head; `random` returns the draw that the head holds already.
        loss: Loss for calibration, the choice of lambda and the fit: the loss of the training,
            or cross entropy instead of a function of the user, whose Hessian is not known.
        travel: As of `scaled`.
        statistics: `data.statistics()`, if they exist already.
        path: The least-square heads of these statistics for all lambdas, if they exist already.
        watch: Measures the phases `lambda`, `solve`, `calibrate` and `fit`.

    Raises:
        ValueError: If a new class has no row.
        StatisticsError: If lambda is to be chosen by held-out rows and no class has two.
    """
    if start.init == "random":
        return Initialisation(data.stale)
    empty = np.flatnonzero(data.counts[data.start :] == 0) + data.start
    if len(empty):
        raise ValueError(f"no sample of the new classes in head rows {empty.tolist()}")
    watch = watch or Stopwatch()
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
            lam, curve = choose_lambda(start, sample, statistics, path)
    elif start.reads_lambda:
        lam = float(start.ridge_parameter)
    with watch.phase("solve"):
        rows = raw_rows(start, data, statistics, lam)
    with watch.phase("calibrate"):
        raw = Initialisation(rows, lam=lam, curve=curve, library=library(rows.weight))
        found = scaled(raw, start, data, sample, statistics, travel=travel)
    if start.init != "fitted" or not data.has_old_rows:
        return found
    assert sample is not None
    with watch.phase("fit"):
        end = fit(sample, found.rows, start.fit_ridge, fits_bias=start.bias == "write")
    judged = sample.judgeable

    def again(fewer: NewClasses) -> Rows:
        chosen = start if lam is None else replace(start, lam=lam)
        return initialise(chosen, fewer, loss=loss, travel=travel).rows

    def left_out() -> LeftOut:
        return LeftOut(judged, computed_again(judged, again, PARTS))

    return replace(found, left_out=left_out, **end._asdict())


def choose_lambda(
    start: Start, sample: CalibrationSet, statistics: ClassStatistics, path: LambdaPath | None
) -> tuple[float, LambdaCurve | None]:
    """Return the lambda that a word stands for, and the curve that it is chosen by.

    Without a new class of two rows there is nothing to judge by, and no curve, nor if rows are of
    no use at any lambda: `auto` then is about the largest eigenvalue of the features.

    Args:
        start: How rows start; its `lam` is `auto` or `held-out`.
        sample: The data, and all logits that stay fixed.
        statistics: Statistics of the data.
        path: As of `initialise`.
    """
    data = sample.data
    if start.lam == "held-out":
        judged = slice(data.start, data.stop)
        held = lambda_curve(
            data.features, data.labels, data.stop, classes=judged, weighting=start.weighting,
            groups=data.groups,
        )  # fmt: skip
        return held.best, held
    path, curve = path or LambdaPath.of(statistics), None
    if data.has_pairs:
        curve = loss_curve(sample.judgeable, path, with_bias=start.bias == "write")
    return curve.best if curve is not None else safe_lambda(path), curve


def loss_curve(
    sample: CalibrationSet, path: LambdaPath, *, with_bias: bool = True
) -> LambdaCurve | None:
    """Return the leave-one-out loss of calibrated rows at each lambda.

    None if it is nowhere below the loss of zero rows: then no lambda is better than another.
    """
    if len(sample) > MAX_ROWS:
        drawn = np.zeros(len(sample), dtype=bool)
        drawn[balanced_draw(sample.labels, MAX_ROWS)] = True
        sample = sample.subset(drawn)
    search = _Search(sample, path, with_bias)
    centre = _half_decades(path)
    lams: list[float] = []
    losses: list[float] = []
    for step in range(ABOVE, -MOST_BELOW - 1, -1):
        if step < -BELOW and min(losses) < losses[-1]:
            break
        lams.append(_lambda(centre + step))
        losses.append(search.loss(lams[-1]))
    if min(losses) >= search.without:
        return None
    return LambdaCurve(tuple(lams[::-1]), tuple(losses[::-1]), "leave-one-out loss")


def safe_lambda(path: LambdaPath) -> float:
    """Return the lambda if nothing can be left out to judge by: about the largest eigenvalue.

    There the rows are nearly the differences of class means from the mean of all.
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
    """Calibrations at one lambda after the other."""

    def __init__(self, sample: CalibrationSet, path: LambdaPath, with_bias: bool) -> None:
        self._sample, self._path, self._with_bias = sample, path, with_bias
        double, data = namespace(path.basis).float64, sample.data
        blocks, self._places = sample.blocks(path.statistics)
        self._blocks = [
            (block, path.coordinates(as_type(take(data.features, block.all_rows), double)))
            for block in blocks
        ]
        self._end = np.array([1.0, 0.0])
        """Factor, for logits of variance 1, and shift at the end of the last search."""
        zeros = sample.weight.new_zeros(len(sample), data.stop - data.start)
        _, self.without = self._calibrated(zeros)
        """The loss of rows of zeros."""

    def loss(self, lam: float) -> float:
        """Return the class-balanced loss at a lambda, with a factor of at least 0."""
        data = self._sample.data
        left_out = (
            self._path.left_out(
                coordinates, data.labels, lam, block, slice(data.start, data.stop),
                shares=data.shares, with_bias=self._with_bias,
            )
            for block, coordinates in self._blocks
        )  # fmt: skip
        factor, loss = self._calibrated(joined(left_out, self._places))
        return loss if factor > 0 else self.without

    def _calibrated(self, logits: Float[Tensor, "rows new"]) -> tuple[float, float]:
        size = np.array([float(logits.std()) or 1.0, 1.0])
        objective = Objective.of(self._sample, logits)
        start = self._end / size
        found, lowest, _ = minimise(objective, start, objective.expansion(start))
        self._end = found * size
        return float(found[0]), lowest - objective.penalty(found)

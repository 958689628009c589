"""Initialisations of the rows of new classes, by name and scale.

    rows = factor * raw rows + (0, shift)

Each initialisation is a file; each looks at `NewClasses` and returns `Rows`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from clinit.extract.stopwatch import Stopwatch
from clinit.headtrain.array import as_tensor, beside, library, namespace
from clinit.headtrain.init.calibrate import calibrate
from clinit.headtrain.init.fit import fit
from clinit.headtrain.init.lambda_choice import loss_curve, safe_lambda
from clinit.headtrain.init.lda import lda_rows
from clinit.headtrain.init.left_out import in_sample, leave_one_out
from clinit.headtrain.init.new_classes import NewClasses
from clinit.headtrain.init.raw import (
    class_mean_rows,
    imprinted_rows,
    least_square_rows,
    random_rows,
    unit_class_mean_rows,
    zero_rows,
)
from clinit.headtrain.init.scale import norm_factor, row_factors
from clinit.headtrain.init.surroundings import Surroundings
from clinit.headtrain.least_squares.lambda_curve import LambdaCurve, lambda_curve
from clinit.headtrain.least_squares.solve import LambdaPath
from clinit.headtrain.least_squares.statistics import ClassStatistics, Weighting
from clinit.headtrain.losses import loss_named
from clinit.headtrain.rows import Rows
from clinit.headtrain.study import Start


@dataclass(frozen=True, slots=True, eq=False)
class Initialisation:
    """New rows, and how they came to their scale."""

    rows: Rows
    factor: float = 1.0
    """What the raw rows were multiplied by; their mean for `row-norm`."""
    shift: float = 0.0
    """What was added to the biases."""
    loss_before: float | None = None
    """Class-balanced loss before the last search: of the raw rows, on the logits that calibration
    looks at, or of the rows that the fit starts from. None where there was no search."""
    loss_after: float | None = None
    steps: int | None = None
    """Steps of that search."""
    lam: float | None = None
    """Ridge of the least squares; None for the others."""
    curve: LambdaCurve | None = None
    """What lambdas were judged by; None unless one was chosen from the data."""
    library: str | None = None
    """What computed them: `numpy` or `cupy`; None for random rows, which are not computed."""

    def facts(self) -> Initialisation:
        """Return all but the rows, which would hold memory of the device."""
        return replace(self, rows=Rows(np.empty((0, 0)), np.empty(0)))


def class_statistics(data: NewClasses, weighting: Weighting = "class") -> ClassStatistics:
    """Return the statistics of old and new rows: once per task, for all heads."""
    return ClassStatistics.of(
        data.features, data.labels, num_classes=data.stop, weighting=weighting
    )


def initialise(
    start: Start,
    data: NewClasses,
    *,
    loss: str = "ce",
    statistics: ClassStatistics | None = None,
    path: Callable[[], LambdaPath] | None = None,
    watch: Stopwatch | None = None,
) -> Initialisation:
    """Return the rows [start, stop) of the head.

    Args:
        start: Which rows at which scale.
        data: The data and the head; `random` returns the draw that the head holds already.
        loss: What calibration, the choice of lambda and the fit minimise: that of the training.
        statistics: Those of `class_statistics(data)`, if they are there already.
        path: Returns the least-square heads of these statistics for all lambdas, if they are
            there already.
        watch: Measures the phases `lambda`, `solve`, `calibrate` and `fit`.

    Raises:
        ValueError: If a new class has no row.
        StatisticsError: If lambda is to be chosen by held-out rows and no class has two.
    """
    if start.init == "random":
        return Initialisation(data.stale)
    data.require_rows()
    watch = watch or Stopwatch()
    if start.reads_statistics and statistics is None:
        statistics = class_statistics(data, start.weighting)
    around = None
    if start.looks_around:
        with watch.phase("calibrate"):
            around = Surroundings.of(data, loss_named(loss))
    lam, curve = _lambda_as_asked(start), None
    if start.chooses_lambda:
        assert around is not None
        assert statistics is not None
        with watch.phase("lambda"):
            lam, curve = choose_lambda(start, around, path or partial(LambdaPath.of, statistics))
    with watch.phase("solve"):
        rows = raw_rows(start, data, statistics, lam)
    with watch.phase("calibrate"):
        raw = Initialisation(rows, lam=lam, curve=curve, library=library(rows.weight))
        found = scaled(raw, start, data, around, statistics)
    if start.init != "fitted" or not data.has_old_rows:
        return found
    assert around is not None
    with watch.phase("fit"):
        return fitted(found, start, around)


def _lambda_as_asked(start: Start) -> float | None:
    if not start.reads_lambda or start.chooses_lambda:
        return None
    return float(start.ridge_parameter)


def choose_lambda(
    start: Start, around: Surroundings, path: Callable[[], LambdaPath]
) -> tuple[float, LambdaCurve | None]:
    """Return the lambda that a word stands for, and the curve that it is chosen by.

    Without a new class of two rows there is nothing to judge by, and no curve: `auto` then is a
    lambda as large as the largest eigenvalue of the features.

    Args:
        start: How rows start; its `lam` is `auto` or `held-out`.
        around: The data, and all logits that stay fixed.
        path: Returns the least-square heads of these data for all lambdas.
    """
    data = around.data
    if start.lam == "held-out":
        judged = slice(data.start, data.stop)
        curve = lambda_curve(
            data.features, data.labels, data.stop, classes=judged, weighting=start.weighting
        )
        return curve.best, curve
    if not data.has_pairs:
        return safe_lambda(path()), None
    curve = loss_curve(around.judgeable, path(), with_bias=start.bias == "write")
    return curve.best, curve


def raw_rows(
    start: Start,
    data: NewClasses,
    statistics: ClassStatistics | None = None,
    lam: float | None = None,
) -> Rows:
    """Return the rows [start, stop) of the head as computed, before any scale.

    Args:
        start: Which rows; not random ones.
        data: The data and the head.
        statistics: Statistics of old and new rows, where `start.reads_statistics`.
        lam: Ridge, where `start.reads_lambda`.
    """
    if start.init == "zero":
        return zero_rows(data)
    if start.init == "imprint":
        return imprinted_rows(data)
    if statistics is None:
        return unit_class_mean_rows(data)
    if start.init == "class-mean":
        return class_mean_rows(data, statistics)
    if start.init == "lda":
        return lda_rows(data, statistics)
    assert lam is not None
    return least_square_rows(data, statistics, lam)


def scaled(
    raw: Initialisation,
    start: Start,
    data: NewClasses,
    around: Surroundings | None = None,
    statistics: ClassStatistics | None = None,
) -> Initialisation:
    """Bring rows as they were computed to the scale of the head.

    Args:
        raw: The rows as computed.
        start: How they were computed, and their scale.
        data: The data and the head.
        around: What `calibrated` rows are chosen by, where `start.looks_around`.
        statistics: Those that the rows were computed from, if any.
    """
    rows = raw.rows
    kept = data.stale.bias if start.bias == "keep" else None
    if start.is_calibrated and _can_be_calibrated(start, data):
        assert around is not None
        return _calibrated(raw, start, around, statistics, kept)
    factors = np.ones(rows.bias.shape[0])
    if start.scale == "norm" or start.is_calibrated:
        factors *= norm_factor(rows, data)
    elif start.scale == "row-norm":
        factors = row_factors(rows, data)
    return replace(raw, rows=_affine(rows, factors, 0.0, kept), factor=float(factors.mean()))


def _can_be_calibrated(start: Start, data: NewClasses) -> bool:
    """Return whether there is something to calibrate on; else the rows take the norm of others.

    Without a row of an earlier class nothing holds the shift back: the least loss is where every
    image is of a new class. Without a new class of two rows nothing can be left out.
    """
    judged = start.calibration == "in-sample" or start.init == "zero" or data.has_pairs
    return data.has_old_rows and judged


def _calibrated(
    raw: Initialisation,
    start: Start,
    around: Surroundings,
    statistics: ClassStatistics | None,
    kept: Any | None,
) -> Initialisation:
    rows = raw.rows
    if start.calibration == "leave-one-out" and start.init != "zero":
        around = around.judgeable
        logits = leave_one_out(start, rows, around.data, statistics, raw.lam)
    else:
        without = namespace(rows.bias).zeros_like(rows.bias)
        logits = in_sample(rows if kept is None else Rows(rows.weight, without))
    found = calibrate(
        around,
        around.logits(logits),
        guess=norm_factor(rows, around.data),
        kept_bias=None if kept is None else as_tensor(kept),
    )
    return replace(
        raw,
        rows=_affine(rows, np.full(rows.bias.shape[0], found.factor), found.shift, kept),
        factor=found.factor,
        shift=found.shift,
        loss_before=found.loss_before,
        loss_after=found.loss_after,
        steps=found.steps,
    )


def fitted(start_rows: Initialisation, start: Start, around: Surroundings) -> Initialisation:
    """Fit the rows to the loss of the training, from where they are."""
    like = start_rows.rows.weight
    weight, bias = as_tensor(like), as_tensor(start_rows.rows.bias)
    found = fit(around, weight, bias, start.fit_ridge, fits_bias=start.bias == "write")
    return replace(
        start_rows,
        rows=Rows(beside(like, found.weight.cpu().numpy()), beside(like, found.bias.cpu().numpy())),
        loss_before=found.loss_before,
        loss_after=found.loss_after,
        steps=found.steps,
    )


def _affine(raw: Rows, factors: np.ndarray, shift: float, kept: Any | None) -> Rows:
    each = beside(raw.weight, factors)
    bias = each * raw.bias + shift if kept is None else kept
    return Rows(each[:, None] * raw.weight, bias)


__all__ = [
    "Initialisation",
    "LambdaCurve",
    "NewClasses",
    "Rows",
    "choose_lambda",
    "class_statistics",
    "initialise",
    "random_rows",
    "raw_rows",
    "scaled",
]

"""Initialisations of the rows of new classes, by name and scale.

    rows = factor * raw rows + (0, shift)

Each initialisation is a file; each looks at `NewClasses` and returns `Rows`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from clinit.headtrain.array import beside, library
from clinit.headtrain.init.calibrate import calibrate
from clinit.headtrain.init.lda import lda_rows
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
from clinit.headtrain.least_squares.lambda_curve import LambdaCurve, lambda_curve
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
    """Class-balanced loss with the raw rows; None unless calibrated."""
    loss_after: float | None = None
    steps: int | None = None
    """Newton steps."""
    lam: float | None = None
    """Ridge of the least squares; None for the others."""
    curve: LambdaCurve | None = None
    """Held-out error by lambda; None unless lambda was chosen from the data."""
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


def choose_lambda(data: NewClasses, weighting: Weighting = "class") -> LambdaCurve:
    """Return the curve that `lam="auto"` decides by: once per task, for all heads."""
    return lambda_curve(
        data.features,
        data.labels,
        data.stop,
        classes=slice(data.start, data.stop),
        weighting=weighting,
    )


def initialise(
    start: Start,
    data: NewClasses,
    *,
    loss: str = "ce",
    statistics: ClassStatistics | None = None,
    curve: LambdaCurve | None = None,
) -> Initialisation:
    """Return the rows [start, stop) of the head.

    Args:
        start: Which rows at which scale.
        data: The data and the head; `random` returns the draw that the head holds already.
        loss: What `calibrated` minimises: the loss of the training.
        statistics: Those of `class_statistics(data)`, if they are there already.
        curve: That of `choose_lambda(data)`, if it is there already; used where `start.lam` is
            `auto`.
    """
    if start.init == "random":
        return Initialisation(data.stale)
    if start.reads_lambda and start.lam == "auto":
        curve = curve or choose_lambda(data, start.weighting)
    if start.reads_statistics:
        statistics = statistics or class_statistics(data, start.weighting)
    return scaled(raw_rows(start, data, statistics, curve), start, data, loss)


def raw_rows(
    start: Start,
    data: NewClasses,
    statistics: ClassStatistics | None = None,
    curve: LambdaCurve | None = None,
) -> Initialisation:
    """Return the rows [start, stop) of the head as computed, before any scale.

    Args:
        start: Which rows; not random ones.
        data: The data and the head.
        statistics: Statistics of old and new rows, where `start.reads_statistics`.
        curve: That of `choose_lambda`, where least squares take their lambda from the data.
    """
    data.require_rows()
    lam: float | None = None
    if start.init == "zero":
        rows = zero_rows(data)
    elif start.init == "imprint":
        rows = imprinted_rows(data)
    elif statistics is None:
        rows = unit_class_mean_rows(data)
    elif start.init == "class-mean":
        rows = class_mean_rows(data, statistics)
    elif start.init == "lda":
        rows = lda_rows(data, statistics)
    else:
        lam = curve.best if curve is not None else float(start.lam)
        rows = least_square_rows(data, statistics, lam)
    return Initialisation(rows, lam=lam, curve=curve, library=library(rows.weight))


def scaled(raw: Initialisation, start: Start, data: NewClasses, loss: str = "ce") -> Initialisation:
    """Bring the rows of `raw_rows` to the scale of the head."""
    rows = raw.rows
    kept = data.stale.bias if start.bias == "keep" else None
    # Without a row of an earlier class nothing holds the shift back: the least loss is where
    # every image is of a new class.
    blind = start.scale == "calibrated" and not (data.labels < data.start).any()
    scale = "norm" if blind else start.scale
    if scale == "calibrated":
        found = calibrate(rows, data, loss_named(loss), kept_bias=kept)
        factors = np.full(rows.bias.shape[0], found.factor)
        return replace(
            raw,
            rows=_affine(rows, factors, found.shift, kept),
            factor=found.factor,
            shift=found.shift,
            loss_before=found.loss_before,
            loss_after=found.loss_after,
            steps=found.steps,
        )
    factors = np.ones(rows.bias.shape[0])
    if scale == "norm":
        factors *= norm_factor(rows, data)
    elif scale == "row-norm":
        factors = row_factors(rows, data)
    return replace(raw, rows=_affine(rows, factors, 0.0, kept), factor=float(factors.mean()))


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

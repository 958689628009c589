"""Initialisations of the rows of new classes, by name and scale.

    rows = factor * raw rows + (0, shift)

Each initialisation is a file; each looks at `NewClasses` and returns `Rows`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from clinit.headtrain.init.calibrate import calibrate
from clinit.headtrain.init.class_mean import class_mean_rows, unit_class_mean_rows
from clinit.headtrain.init.config import INITS, SCALES, InitConfig
from clinit.headtrain.init.data import NewClasses, Rows
from clinit.headtrain.init.imprint import imprinted_rows
from clinit.headtrain.init.lda import lda_rows
from clinit.headtrain.init.least_square import least_square_rows
from clinit.headtrain.init.random import random_rows
from clinit.headtrain.init.scale import norm_factor, row_factors
from clinit.headtrain.init.zero import zero_rows
from clinit.headtrain.lambda_curve import LambdaCurve, lambda_curve
from clinit.headtrain.losses import loss_named
from clinit.headtrain.statistics import ClassStatistics


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


def class_statistics(data: NewClasses) -> ClassStatistics:
    """Return class-balanced statistics of buffer + new task: once a task, for all heads."""
    return ClassStatistics.of(data.features, data.labels, num_classes=data.stop)


def choose_lambda(data: NewClasses) -> LambdaCurve:
    """Return the curve that `lam="auto"` decides by: once a task, for all heads."""
    return lambda_curve(data.features, data.labels, data.stop, classes=slice(data.start, data.stop))


def initialise(
    config: InitConfig,
    data: NewClasses,
    *,
    statistics: ClassStatistics | None = None,
    curve: LambdaCurve | None = None,
) -> Initialisation:
    """Return the rows [start, stop) of the head.

    Args:
        config: Which rows at which scale.
        data: The data and the head; `random` returns the draw that the head holds already.
        statistics: Those of `class_statistics(data)`, if they are there already.
        curve: That of `choose_lambda(data)`, likewise; used where `config.lam` is `auto`.
    """
    if config.init == "random":
        return Initialisation(data.stale)
    data.require_rows()
    if config.init != "least-square":
        return _scaled(_raw_rows(config, data, statistics), config, data)
    if config.lam == "auto":
        curve = curve or choose_lambda(data)
        lam = curve.best
    else:
        curve, lam = None, config.lam
    raw = least_square_rows(data, statistics or class_statistics(data), lam)
    return replace(_scaled(raw, config, data), lam=lam, curve=curve)


def _raw_rows(config: InitConfig, data: NewClasses, statistics: ClassStatistics | None) -> Rows:
    if config.init == "zero":
        return zero_rows(data)
    if config.init == "imprint":
        return imprinted_rows(data)
    if config.init == "class-mean" and config.class_mean == "unit":
        return unit_class_mean_rows(data)
    statistics = statistics or class_statistics(data)
    return lda_rows(data, statistics) if config.init == "lda" else class_mean_rows(data, statistics)


def _scaled(raw: Rows, config: InitConfig, data: NewClasses) -> Initialisation:
    kept = data.stale.bias if config.bias == "keep" else None
    # Without a row of an earlier class nothing holds the shift back: the least loss is where
    # every image is of a new class.
    blind = config.scale == "calibrated" and not (data.labels < data.start).any()
    scale = "norm" if blind else config.scale
    if scale == "calibrated":
        found = calibrate(raw, data, loss_named(config.loss), kept_bias=kept)
        factors = np.full(len(raw.bias), found.factor)
        return Initialisation(
            _affine(raw, factors, found.shift, kept),
            factor=found.factor,
            shift=found.shift,
            loss_before=found.loss_before,
            loss_after=found.loss_after,
            steps=found.steps,
        )
    factors = np.ones(len(raw.bias))
    if scale == "norm":
        factors *= norm_factor(raw, data)
    elif scale == "row-norm":
        factors = row_factors(raw, data)
    return Initialisation(_affine(raw, factors, 0.0, kept), factor=float(factors.mean()))


def _affine(raw: Rows, factors: np.ndarray, shift: float, kept: np.ndarray | None) -> Rows:
    bias = factors * raw.bias + shift if kept is None else kept
    return Rows(factors[:, None] * raw.weight, bias)


__all__ = [
    "INITS",
    "SCALES",
    "InitConfig",
    "Initialisation",
    "LambdaCurve",
    "NewClasses",
    "Rows",
    "choose_lambda",
    "class_statistics",
    "initialise",
    "random_rows",
]

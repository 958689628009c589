"""How the rows of new classes start.

    raw, lda           rows as computed: each function looks at `NewClasses` and returns `Rows`
    scale              the scale of the rows that the head has: by norms, or by the loss (calibrate)
    left_out           the logits that calibration looks at
    episodes           the scale where there are none: rows of single images
    lambda_choice      the ridge of least squares, by the loss
    fit                rows fitted to the loss
    task_start         all of it for the heads of a bank; solved: heads that are solved as a whole

`initialise` goes through them for one head.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial

from clinit.headtrain.array import as_tensor, beside, library
from clinit.headtrain.init.fit import fit
from clinit.headtrain.init.initialisation import Initialisation
from clinit.headtrain.init.lambda_choice import loss_curve, safe_lambda
from clinit.headtrain.init.new_classes import NewClasses
from clinit.headtrain.init.raw import random_rows, raw_rows
from clinit.headtrain.init.scale import scaled
from clinit.headtrain.init.surroundings import Surroundings
from clinit.headtrain.least_squares.lambda_curve import LambdaCurve, lambda_curve
from clinit.headtrain.least_squares.solve import LambdaPath
from clinit.headtrain.least_squares.statistics import ClassStatistics, Weighting
from clinit.headtrain.losses import loss_named
from clinit.headtrain.rows import Rows
from clinit.headtrain.study import Start
from clinit.stopwatch import Stopwatch


def class_statistics(data: NewClasses, weighting: Weighting = "class") -> ClassStatistics:
    """Return the statistics of old and new rows: once per task, for all heads."""
    return ClassStatistics.of(
        data.features,
        data.labels,
        num_classes=data.stop,
        weighting=weighting,
        groups=data.groups,
    )


def initialise(
    start: Start,
    data: NewClasses,
    *,
    loss: str = "ce",
    travel: float = math.inf,
    statistics: ClassStatistics | None = None,
    path: Callable[[], LambdaPath] | None = None,
    watch: Stopwatch | None = None,
) -> Initialisation:
    """Return the rows [start, stop) of the head.

    Args:
        start: Which rows at which scale.
        data: The data and the head; `random` returns the draw that the head holds already.
        loss: What calibration, the choice of lambda and the fit minimise: that of the training.
        travel: As of `scaled`.
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
        found = scaled(raw, start, data, around, statistics, travel=travel)
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

    Without a new class of two rows there is nothing to judge by, and no curve, nor where rows are
    of no use at any lambda: `auto` then is about the largest eigenvalue of the features.

    Args:
        start: How rows start; its `lam` is `auto` or `held-out`.
        around: The data, and all logits that stay fixed.
        path: Returns the least-square heads of these data for all lambdas.
    """
    data = around.data
    if start.lam == "held-out":
        judged = slice(data.start, data.stop)
        held = lambda_curve(
            data.features, data.labels, data.stop, classes=judged, weighting=start.weighting,
            groups=data.groups,
        )  # fmt: skip
        return held.best, held
    curve: LambdaCurve | None = None
    if data.has_pairs:
        curve = loss_curve(around.judgeable, path(), with_bias=start.bias == "write")
    return curve.best if curve is not None else safe_lambda(path()), curve


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

"""Initialise the rows of new classes of one head, from raw rows to scaled or fitted rows.

If the factor of calibrated rows is not positive (left-out images are unlike the rest of their
class), or no image can be left out and nothing shows how images of a class vary, new rows get the
mean norm of old rows (`scaled`).

Next to old classes that were guessed, K of them, and classes of a single image, a share of the new
ones, the factor and the shift go over to the mean norm of old rows, and to 0, by the share times
log(K / `FEW`) / log(`MANY` / `FEW`), in [0, 1].
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from clinit.headtrain.heads.array import as_tensor, library, namespace
from clinit.headtrain.heads.linear import Rows
from clinit.headtrain.heads.losses import LOSSES
from clinit.headtrain.heads.start.beside_guesses import PARTS, lambda_beside_guesses
from clinit.headtrain.heads.start.calibrate import (
    Objective,
    Search,
    affine,
    calibrate,
    norm_factor,
    norm_ratio,
    row_factors,
    together,
)
from clinit.headtrain.heads.start.calibration_set import CalibrationSet
from clinit.headtrain.heads.start.discriminant_choice import discriminant_rows
from clinit.headtrain.heads.start.fit import fit
from clinit.headtrain.heads.start.lambda_choice import compared, logits_of, loss_curve, safe_lambda
from clinit.headtrain.heads.start.left_out import (
    Fold,
    computed_again,
    in_sample,
    judges_of,
    leave_one_out,
    without_parts,
)
from clinit.headtrain.heads.start.new_rows import NewClasses, raw_rows
from clinit.headtrain.heads.start.scale import Initialisation, LeftOut
from clinit.headtrain.heads.start.settings import Start
from clinit.headtrain.heads.statistics.class_statistics import ClassStatistics
from clinit.headtrain.heads.statistics.solve import LambdaPath
from clinit.machine import Stopwatch

FEW, MANY = 40, 100
"""Next to 1,000 classes, the norm of old rows is better than the least loss: of five new classes of
one image, 54 % are right in place of 34 (MobileNetV2). Next to 25 and 35 it can lose half of the
accuracy of old ones (scenes, audio)."""


def initialise(start: Start, data: NewClasses, **options: Any) -> Initialisation:
    """Return the rows [start, stop) of one head; `initialising` has the options."""
    return together([initialising(start, data, **options)])[0]


def initialising(
    start: Start,
    data: NewClasses,
    *,
    loss: str = "ce",
    statistics: ClassStatistics | None = None,
    path: LambdaPath | None = None,
    near: float | None = None,
    watch: Stopwatch | None = None,
    known: dict[float | None, Tensor] | None = None,
) -> Search[Initialisation]:
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
        known: Unscaled logits by lambda, which equal starts of other heads on these data share.

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
    if known is None or start.own is not None:  # such rows may depend on the head
        known = {}
    if start.looks_around:
        with watch.phase("calibrate"):
            sample = CalibrationSet.of(data, LOSSES.get(loss, LOSSES["ce"]), start.new_share)
    lam, curve, around, without = None, None, sample, list[Rows]()
    if start.chooses_lambda:
        assert sample is not None
        assert statistics is not None
        with watch.phase("lambda"):
            judges = judges_of(start, sample, statistics)
            if data.guessed is not None:
                chosen = yield from lambda_beside_guesses(start, judges, statistics, known)
                lam, curve, without = chosen
            else:
                path, judges = path or LambdaPath.of(statistics), compared(judges)
                if bool((judges.target >= 0).any()):
                    curve = yield from loss_curve(judges, path, start, near=near)
                # If no row can judge, or rows of zeros beat every lambda, there is no curve.
                lam = curve.best if curve is not None else safe_lambda(path)
                leaves_out = start.calibration == "leave-one-out"
                if curve is not None and lam not in known and leaves_out:
                    kept = logits_of(judges, path, start, lam)
                    known |= {} if kept is None else {lam: kept}
                if start.init == "fitted" and leaves_out:
                    around = judges  # calibrated rows are only where the fit begins
    elif start.reads_lambda:
        lam = float(start.ridge_parameter)
    with watch.phase("solve"):
        rows = raw_rows(start, data, statistics, lam)
    with watch.phase("calibrate"):
        raw = Initialisation(rows, lam=lam, curve=curve, library=library(rows.weight))
        found = yield from scaled(raw, start, data, around, statistics, known)
    if start.init != "fitted" or not data.has_old_rows:
        return found
    assert sample is not None
    with watch.phase("fit"):
        end = fit(sample, found.rows, start.fit_ridge, fits_bias=start.bias == "write")

    def again(part: Fold) -> Rows:
        fewer = part.data
        around = CalibrationSet.of(fewer, sample.loss, start.new_share)
        if without:
            raw = without[part.number]
        else:
            raw = raw_rows(start, fewer, fewer.statistics(start.weighting), lam)
        kept = fewer.stale.bias if start.bias == "keep" else None
        begin = affine(raw, found.factor, found.shift, kept)
        return fit(around, begin, start.fit_ridge, fits_bias=kept is None).rows

    def left_out() -> LeftOut:
        logits = computed_again(sample, without_parts(sample, PARTS), again)
        judged = ~sample.alone
        return LeftOut(data, sample.drawn[judged], logits[torch.from_numpy(judged)])

    return replace(found, left_out=left_out, **end._asdict())


def scaled(
    raw: Initialisation,
    start: Start,
    data: NewClasses,
    sample: CalibrationSet | None,
    statistics: ClassStatistics | None,
    known: dict[float | None, Tensor],
) -> Search[Initialisation]:
    """Scale raw rows to match the head.

    Args:
        raw: The raw rows.
        start: Kind of the rows, and how to scale them.
        data: The data and the head.
        sample: Data for calibration, if `start.looks_around`.
        statistics: Statistics that the rows were computed from, if any.
        known: Logits by lambda, which heads of equal starts share.
    """
    rows = raw.rows
    kept = data.stale.bias if start.bias == "keep" else None
    # If no old class has a row, the loss is least with a shift so large that a new class wins
    # every image.
    if start.is_calibrated and (data.has_old_rows or not data.start):
        assert sample is not None
        if (found := (yield from _calibrated(raw, start, sample, statistics, known))) is not None:
            return found
    factors = np.ones(rows.bias.shape[0])
    if start.is_calibrated and start.reads_lambda and data.has_old_rows:
        # `norm_factor` would include rows of earlier tasks, so that norms grow from task to task.
        factors *= norm_ratio(data.head.between(0, data.came_with).weight, rows.weight)
    elif start.scale == "norm" or start.is_calibrated:
        factors *= norm_factor(rows, data)
    elif start.scale == "row-norm":
        factors = row_factors(rows, data)
    return replace(raw, rows=affine(rows, factors, 0.0, kept), factor=float(factors.mean()))


def _calibrated(
    raw: Initialisation,
    start: Start,
    sample: CalibrationSet,
    statistics: ClassStatistics | None,
    known: dict[float | None, Tensor],
) -> Search[Initialisation | None]:
    """Return rows of the least loss; None if no factor is positive, or no row can judge."""
    rows, kept = raw.rows, sample.data.stale.bias if start.bias == "keep" else None
    leaves_out = start.calibration == "leave-one-out" and start.init != "zero"
    if leaves_out:
        if statistics is None and sample.alone.any():  # they are judged by the covariance
            statistics = sample.data.statistics()
        sample = judges_of(start, sample, statistics)
        if not bool((sample.target >= 0).any()):
            return None
    if raw.lam not in known:
        if leaves_out:
            known[raw.lam] = leave_one_out(start, rows, sample, statistics, raw.lam)
        else:
            bias = rows.bias if kept is None else namespace(rows.bias).zeros_like(rows.bias)
            known[raw.lam] = sample.logits(in_sample(Rows(rows.weight, bias)))
    logits, bias = known[raw.lam], None if kept is None else as_tensor(kept)
    starts = [np.array([factor, 0.0]) for factor in (1.0, norm_factor(rows, sample.data))]
    found = yield from calibrate(sample, logits, starts, kept_bias=bias)
    if found.factor <= 0:
        return None
    data = sample.data
    if data.guessed is not None:
        by_classes = float(np.log(data.start / FEW) / np.log(MANY / FEW))
        part = min(1.0, max(0.0, by_classes)) * float((data.counts[data.start :] == 1).mean())
        place = (1 - part) * np.array([found.factor, found.shift])
        place[0] += part * norm_factor(rows, data)
        objective = Objective.of(sample, logits, bias)
        value, _, _ = yield objective, place
        factor, shift, loss = *map(float, place), value - objective.penalty(place)
        found = found._replace(factor=factor, shift=shift, loss_after=loss)

    def left_out() -> LeftOut:
        really = torch.from_numpy(~sample.alone).to(logits.device)
        scaled = found.factor * logits[really] + found.shift + (0.0 if bias is None else bias)
        return LeftOut(sample.data, sample.drawn[~sample.alone], scaled)

    rows, later = affine(rows, found.factor, found.shift, kept), left_out if leaves_out else None
    return replace(raw, rows=rows, left_out=later, **found._asdict())

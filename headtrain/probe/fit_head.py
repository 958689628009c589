"""A head for the classes of a cache, fitted to its training rows.

    logistic   multinomial logistic regression by L-BFGS on standardised features, its penalty
               chosen by the mean loss on a held-out fifth of the rows of each class
    ridge      W_LS with class-balanced averages, its lambda chosen by the leave-one-out error
    lda        linear discriminants with shrinkage (`clinit.headtrain.heads.start.new_rows`)

The scale of the logits matters, because new rows are scaled to match this head, and training
continues with cross entropy. In logistic regression the penalty sets the scale. It is chosen by the
loss, because many penalties label the held-out rows equally well, and the strongest of them makes
all probabilities nearly equal. Scores of least squares and discriminants have another scale, and
are divided by a temperature (`clinit.headtrain.heads.temperature`). To fit it, a second head is
solved without a fifth of the rows of each class, on which its temperature is fitted. Labels are
smoothed, so that a temperature exists even if all of these rows are classified correctly.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Literal

import numpy as np
from jaxtyping import Bool, Int

from clinit.errors import CacheError
from clinit.extract.cache.features import FeatureSet
from clinit.extract.cache.head import Head
from clinit.headtrain.heads.groups import held_out_rows, repeating
from clinit.headtrain.heads.repeats import groups_of
from clinit.headtrain.heads.seeds import Draw, generator
from clinit.headtrain.heads.start.new_rows import SHRINKAGE, discriminants
from clinit.headtrain.heads.statistics.class_statistics import ClassStatistics
from clinit.headtrain.heads.statistics.lambda_curve import leave_one_out_curve
from clinit.headtrain.heads.statistics.solve import least_squares_head
from clinit.headtrain.heads.temperature import Temperature, fit_temperature, logits_of
from clinit.headtrain.probe.protocol import present_classes, probe
from clinit.headtrain.probe.settings import ProbeConfig
from clinit.headtrain.protocol.stream.source import Source

HeadFit = Literal["logistic", "ridge", "lda"]
HELD_OUT = 0.2
FEW_ROWS = 30
"""Held-out rows below which the scale of the logits is a guess."""
C = (1e-4, 1e-3, 1e-2, 1e-1, 1.0)
"""Inverse penalties that `logistic` tries. Features are standardised, so that the best penalty is
near one of these values whatever the unit of the features. Larger values take longest."""
Progress = Callable[[str, int, int], None]
"""Called with the stage, its finished units and all its units."""


def fit_head(
    source: Source, by: HeadFit, *, progress: Progress = lambda stage, done, total: None
) -> tuple[Head, tuple[str, ...]]:
    """Fit a head to the training rows of a cache, with a row per class that has training rows.

    Args:
        source: Features with their classes.
        by: Method of the fit.
        progress: Called with the searches of `logistic`.

    Returns:
        The head, whose origin records the fit, and notes on the scale of its logits.

    Raises:
        CacheError: If fewer than two classes have rows, if `logistic` cannot hold out any row, or
            if the features are too large for the shrinkage of `lda`.
    """
    if by == "logistic":
        return _logistic(source, progress)
    present, place = present_classes(source)
    names = tuple(source.class_names[label] for label in present)
    rows = FeatureSet(source.train.features, place[source.train.labels], names)
    groups = groups_of(source.train)
    held = held_out_rows(rows.labels, groups, HELD_OUT, generator(0, Draw.HELD_OUT))
    head, facts = _solved(rows, by, None, repeating(groups))
    temperature = _temperature(rows, held, by, facts.get("lam"))
    if temperature is None:
        note = (
            f"{held.sum():,} held-out rows give no temperature to divide the head by: its"
            " probabilities are unreliable"
        )
        return _named(head, source, by, facts), (note,)
    count = int(held.sum())
    head = Temperature(value=temperature, fitted_rows=count, measured_rows=0).divided(head)
    facts |= {"temperature": temperature, "temperature_rows": count}
    return _named(head, source, by, facts), _few(count)


def _logistic(source: Source, progress: Progress) -> tuple[Head, tuple[str, ...]]:
    if source.train.counts().max() < 2:
        raise CacheError(
            "every class has a single training row: no row can be held out to choose the penalty"
            " of a logistic regression",
            remedy="Fit the head by `--method ridge` or `--method lda`.",
        )
    config = ProbeConfig(by="lbfgs", c=C, standardise=True, held_out=HELD_OUT)
    found = probe(source, config, choose_by="loss", progress=progress)
    facts = {**found.chosen, "converged": all(point.converged for point in found.grid)}
    return _named(found.head, source, "logistic", facts), _few(found.held_out_rows)


def _temperature(
    rows: FeatureSet, held: Bool[np.ndarray, " rows"], by: str, lam: float | None
) -> float | None:
    """Fit the temperature of a head to held-out rows; the head is fitted to all other rows."""
    if not held.any():
        return None
    others, aside = (
        replace(part, features=part.features[:]) for part in (rows.part(~held), rows.part(held))
    )
    logits = logits_of(_solved(others, by, lam)[0], aside, np.arange(len(aside.labels)))
    return fit_temperature(logits, aside.labels, smoothed=True)


def _few(held: int) -> tuple[str, ...]:
    text = f"the scale of the logits is fitted to {held:,} held-out rows alone: a rough guess"
    return (text,) if held < FEW_ROWS else ()


def _named(head: Head, source: Source, by: str, facts: dict[str, Any]) -> Head:
    origin = {"fitted": by, **facts, "rows": len(source.train.labels)}
    return replace(head, origin=origin, fingerprint=source.fingerprint.backbone_identifier)


def _solved(
    rows: FeatureSet,
    by: str,
    lam: float | None,
    groups: Int[np.ndarray, " rows"] | None = None,
) -> tuple[Head, dict[str, Any]]:
    """Solve for a head of all classes, at `lam` or at the lambda of the least error.

    Raises:
        CacheError: If a covariance of `lda` is not positive definite to working precision.
    """
    statistics = ClassStatistics.of(rows.features, rows.labels, num_classes=len(rows.class_names))
    if by == "lda":
        try:
            found = discriminants(statistics)
        except np.linalg.LinAlgError as error:
            raise CacheError(
                f"the shrinkage of linear discriminants, {SHRINKAGE:g}, is too small for features"
                f" of this scale: the covariance of {len(rows.labels):,} rows of {rows.dim:,}"
                " numbers is singular",
                remedy="Fit the head by `--method logistic` or `--method ridge`.",
            ) from error
        return found.as_head(rows.class_names), {"shrinkage": SHRINKAGE}
    if lam is None:
        lam = leave_one_out_curve(rows.features, rows.labels, statistics, groups=groups).best
    return least_squares_head(statistics, lam).as_head(rows.class_names), {"lam": lam}

"""The head of a cache that came without one, fitted to its training rows.

    logistic   multinomial logistic regression by L-BFGS on standardised features, its penalty
               chosen by top-1 on a held-out fifth of the rows of each class: a linear probe
    ridge      W_LS with class-balanced averages, its lambda chosen by the leave-one-out error
    lda        linear discriminants with shrinkage (`clinit.headtrain.init.lda`)

Least squares and discriminants are scores on a scale of their own. New rows start beside their
logits, and training goes on with cross entropy: so they are divided by the temperature of a head
that is fitted without a fifth of the rows of each class, on these (`clinit.headtrain.temperature`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Literal

import numpy as np
from jaxtyping import Bool

from clinit.errors import CacheError
from clinit.extract.features import FeatureSet
from clinit.extract.head import Head
from clinit.headtrain.class_draws import held_out_rows
from clinit.headtrain.init.lda import SHRINKAGE, discriminants
from clinit.headtrain.least_squares.cross_validation import leave_one_out_curve
from clinit.headtrain.least_squares.solve import least_squares_head
from clinit.headtrain.least_squares.statistics import ClassStatistics
from clinit.headtrain.probe.protocol import present_classes, probe
from clinit.headtrain.probe.settings import ProbeConfig
from clinit.headtrain.stream.seeds import Draw, generator
from clinit.headtrain.stream.source import Source
from clinit.headtrain.temperature import Temperature, fit_temperature, logits_of

HeadFit = Literal["logistic", "ridge", "lda"]
HELD_OUT = 0.2
LEAST_FOR_TEMPERATURE = 30
"""Held-out rows below which no temperature is fitted."""
C = (1e-4, 1e-3, 1e-2, 1e-1, 1.0)
"""Inverse penalties that `logistic` tries, on standardised features: whatever their unit, the best
one is among them or near. Larger ones take most of the time."""
Progress = Callable[[str, int, int], None]
"""Called with the stage, what is done of it, and all there is."""


def fit_head(
    source: Source, by: HeadFit, *, progress: Progress = lambda stage, done, total: None
) -> Head:
    """Fit a head to the training rows of a cache, with a row per class that has some.

    Args:
        source: Features with their classes.
        by: How.
        progress: Called with the searches of `logistic`.

    Raises:
        CacheError: If fewer than two classes have rows, or `logistic` can hold nothing out.
    """
    if by == "logistic":
        if source.train.counts().max() < 2:
            raise CacheError(
                "every class has a single training row: nothing can be held out to choose the"
                " penalty of a logistic regression by",
                remedy="Fit the head with `--fit-head ridge` or `--fit-head lda`.",
            )
        found = probe(source, ProbeConfig(by="lbfgs", c=C, standardise=True), progress=progress)
        told: dict[str, Any] = {**found.chosen, "converged": all(p.converged for p in found.grid)}
        return _named(found.head, source, by, told)
    rows = _present(source)
    held = held_out_rows(rows.labels, HELD_OUT, generator(0, Draw.HELD_OUT))
    solved, told = _solved(rows, by, None)
    if (value := _temperature(rows, held, by, told.get("lam"))) is not None:
        solved = Temperature(value=value, fitted_rows=int(held.sum()), measured_rows=0).divided(
            solved
        )
        told["temperature"] = value
    return _named(solved, source, by, told)


def _temperature(
    rows: FeatureSet, held: Bool[np.ndarray, " rows"], by: str, lam: float | None
) -> float | None:
    """Fit the temperature of a head of the other rows to those that are held out."""
    if held.sum() < LEAST_FOR_TEMPERATURE:
        return None
    without, _ = _solved(_read(rows.part(~held)), by, lam)
    aside = _read(rows.part(held))
    return fit_temperature(logits_of(without, aside, np.arange(len(aside.labels))), aside.labels)


def _read(rows: FeatureSet) -> FeatureSet:
    """Return rows with their features in memory."""
    return replace(rows, features=rows.features[:])


def _named(head: Head, source: Source, by: str, told: dict[str, Any]) -> Head:
    origin = {"fitted": by, **told, "rows": len(source.train.labels)}
    fingerprint = source.fingerprint.backbone_identifier
    return replace(head, origin=origin, fingerprint=fingerprint)


def _present(source: Source) -> FeatureSet:
    """Return the rows with labels among the classes that have some."""
    present, place = present_classes(source)
    names = tuple(source.class_names[label] for label in present)
    return FeatureSet(source.train.features, place[source.train.labels], names)


def _solved(rows: FeatureSet, by: str, lam: float | None) -> tuple[Head, dict[str, Any]]:
    """Solve for a head of all classes, at a lambda or the one of the least error."""
    statistics = ClassStatistics.of(rows.features, rows.labels, num_classes=len(rows.class_names))
    if by == "lda":
        return discriminants(statistics).as_head(rows.class_names), {"shrinkage": SHRINKAGE}
    if lam is None:
        lam = leave_one_out_curve(rows.features, rows.labels, statistics).best
    return least_squares_head(statistics, lam).as_head(rows.class_names), {"lam": lam}

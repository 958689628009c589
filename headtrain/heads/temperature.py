"""One temperature for all logits of a model, so that its probabilities match its accuracy.

A head trained to a small loss is overconfident. Dividing its logits z by one T > 0 changes no
answer. With b = 1 / T, the mean negative log-likelihood of held-out rows is least if

    d/db Ave[-log softmax(b z)_y] = Ave[sum_k softmax(b z)_k z_k - z_y] = 0.

The negative log-likelihood is convex in b, so that at most one such T exists. None exists if every
row is labelled right (the larger b the better), or if the logits are useless (b = 0). If a
temperature is needed although every row is labelled right, z_y is replaced by
(1 - e) z_y + e (mean of the other z_k) with e = 1 / (n + 2) for n rows, because n right answers of
n make labels likely, but not certain. A class that the head rules out has no probability at any T,
and is left out with its rows.

For heads whose classes are independent (sigmoid), the likelihood is that of a logistic model of
each class, sum_k log(1 + exp(b z_k)) - b z_y.

A prior, n(T) = exp(-p / 2 (log T / T_0)^2) for a strength of p rows and an earlier temperature T_0,
takes the place of rows that are missing: T then always exists, and moves from T_0 by degrees.

The effect of T is measured on each half of the held-out rows of each class, with the T of the other
half. The measure is the expected calibration error over 15 bins B_m of equal width of the largest
probability,

    ECE = sum_m |B_m| / n |accuracy(B_m) - mean probability(B_m)|.

Source: C. Guo, G. Pleiss, Y. Sun, K. Q. Weinberger, "On calibration of modern neural networks",
ICML 2017, Sections 2 and 4.2; J. C. Platt, "Probabilistic outputs for support vector machines and
comparisons to regularized likelihood methods", Advances in Large Margin Classifiers, 1999.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Literal

import numpy as np
from jaxtyping import Bool, Float, Int
from msgspec import Meta

from clinit.extract.cache.features import FeatureSet
from clinit.extract.cache.head import Head
from clinit.files.documents import Count
from clinit.headtrain.heads.linear import NEVER

BINS = 15
LEAST_ROWS = 100
"""Least number of held-out rows without a prior: half of fewer rows would determine one number
poorly, and an error over 15 bins even worse. So it is not measured on fewer rows, either."""
PRIOR = 16.0
"""Usual strength of a prior, in rows. With 8 or 4, ViT-tiny is worse calibrated if a tenth of the
old classes are tested."""
MOST_ROWS, MOST_LOGITS = 20_000, 27_500_000
"""Maximum number of held-out rows that are used, and of their logits: 220 MB of 1,365 classes."""
LEAST_LEAD = 1e-4
"""Least lead of the largest logit, divided by T, over the second, in the row with the largest lead.
With a smaller lead, the first and second answers are almost equally likely, and soon equal in
float32."""
_MOST_STEPS = 100
"""Maximum number of doublings of b in the search for a bracket."""

Activation = Literal["softmax", "sigmoid"]
CalibrationError = Annotated[float, Meta(ge=0, le=1)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Temperature:
    """The divisor of the logits of a head, and the effect of the division on probabilities."""

    value: Annotated[float, Meta(gt=0)]
    """T; above 1 if the trained head was overconfident."""
    fitted_rows: Count
    """Number of held-out rows that T was fitted to."""
    measured_rows: Count
    """Number of held-out rows on which errors were measured; 0 if nothing was measured."""
    ece_before: CalibrationError | None = None
    """Expected calibration error of the trained head, in [0, 1]."""
    ece_after: CalibrationError | None = None
    """Expected calibration error with logits divided by T, in [0, 1]."""

    @property
    def unmeasured(self) -> Temperature:
        """The same temperature without measurements, after classes have changed."""
        return replace(self, measured_rows=0, ece_before=None, ece_after=None)

    def divided(self, head: Head) -> Head:
        """Divide the logits of a trained head by T, for export."""
        weight, bias = (part.astype(np.float64) / self.value for part in (head.weight, head.bias))
        return replace(head, weight=weight.astype(np.float32), bias=bias.astype(np.float32))

    def multiplied(self, head: Head) -> Head:
        """Recover the trained head from an exported head, up to the rounding of the export.

        In float64, so that dividing the result again gives the bits of the exported head.
        """
        weight, bias = (part.astype(np.float64) * self.value for part in (head.weight, head.bias))
        return replace(head, weight=weight, bias=bias)

    def describe(self) -> str:
        """Return the facts about the probabilities, in words."""
        text = f"temperature {self.value:.3g}, fitted on {self.fitted_rows:,} tested images"
        if self.ece_before is None or self.ece_after is None:
            takes = f"{LEAST_ROWS} tested images, enough of them of old classes"
            return f"{text}; the error that is left was not measured, which takes {takes}"
        error = f"off by {100 * self.ece_after:.1f} % on average (calibration error)"
        return (
            f"{error} with {text}, each half for the other; {100 * self.ece_before:.1f} % without"
        )


def divided(head: Head, temperature: Temperature | None) -> Head:
    """Divide the logits of a trained head by its temperature, if any, for export."""
    return head if temperature is None else temperature.divided(head)


def temperature_of(
    head: Head,
    rows: FeatureSet,
    activation: Activation = "softmax",
    *,
    prior: float = 0.0,
    before: float = 1.0,
) -> Temperature | None:
    """Fit a temperature to held-out rows, and measure its effect.

    Args:
        head: The trained head.
        rows: Features of images that it was not trained on; labels are rows of the head.
        activation: `sigmoid` if the probabilities of the classes are independent.
        prior: Strength of the prior, in rows. Above `PRIOR`, nothing is measured.
        before: An earlier temperature, the mode of the prior.

    Returns:
        The temperature; without a prior, None if fewer than `LEAST_ROWS` rows belong to classes
        that the head does not rule out, or if no temperature is best.
    """
    # Half of `NEVER`, because dividing and multiplying rows again changes their last bits.
    left = np.flatnonzero((head.bias > NEVER / 2) | head.weight.any(axis=1))
    place = np.full(head.num_classes, -1, dtype=np.int64)
    place[left] = np.arange(len(left))
    labels = place[rows.labels]
    order = np.argsort(labels, kind="stable")[np.count_nonzero(labels < 0) :]
    if len(order) < (1 if prior else LEAST_ROWS):
        return None
    most = min(len(order), MOST_ROWS, max(LEAST_ROWS, MOST_LOGITS // len(left)))
    order = order[np.linspace(0, len(order) - 1, num=most).astype(np.int64)]
    logits, labels = logits_of(head, rows, order)[:, left] / before, labels[order]

    def fitted(some: slice) -> float | None:
        return fit_temperature(logits[some], labels[some], activation=activation, prior=prior)

    # Every other row in the order of classes is half of each class.
    halves = (slice(0, None, 2), slice(1, None, 2))
    is_measured = most >= LEAST_ROWS and prior <= PRIOR
    value, *of_halves = map(fitted, [slice(None), *(halves if is_measured else ())])
    if value is None or None in of_halves:
        return None
    if float(np.diff(np.partition(logits, -2)[:, -2:]).max()) < LEAST_LEAD * value:
        return None
    found = Temperature(value=before * value, fitted_rows=most, measured_rows=0)
    if not is_measured:
        return found
    divisors = np.ones((most, 1))
    for half, other in zip(halves, reversed(of_halves), strict=True):
        divisors[half] = other
    chances = [PROBABILITIES[activation](logits / by) for by in (1 / before, divisors)]
    errors = [calibration_error(p.max(1), p.argmax(1) == labels) for p in chances]
    return replace(found, measured_rows=most, ece_before=errors[0], ece_after=errors[1])


def fit_temperature(
    logits: Float[np.ndarray, "rows classes"],
    labels: Int[np.ndarray, " rows"],
    *,
    smoothed: bool = False,
    activation: Activation = "softmax",
    prior: float = 0.0,
) -> float | None:
    """Return the temperature of the least mean negative log-likelihood; None if none exists.

    Args:
        logits: Logits in float64, without classes that the head rules out.
        labels: The column of the class of each row.
        smoothed: Give 1 / (n + 2) of each label evenly to the other classes, so that a temperature
            exists even if every row is labelled right.
        activation: `sigmoid` if the probabilities of the classes are independent.
        prior: Strength of a prior around 1, in rows; with it, a temperature always exists.
    """
    if not len(labels) or logits.shape[1] < 2:
        return None
    truth, probabilities_of = logits[np.arange(len(labels)), labels], PROBABILITIES[activation]
    if smoothed:
        others = (logits.sum(axis=1) - truth) / (logits.shape[1] - 1)
        truth = truth + (others - truth) / (len(labels) + 2)

    def slope(b: float) -> float:
        found = float((probabilities_of(b * logits) * logits).sum(axis=1).mean() - truth.mean())
        return found + prior * math.log(b) / (len(labels) * b)

    if activation == "softmax" and not prior and bool((truth >= logits.max(axis=1)).all()):
        return None
    low = high = 1.0
    for _ in range(_MOST_STEPS):
        if slope(low) > 0:
            low /= 2
        elif slope(high) < 0:
            high *= 2
        elif low == high:
            return 1.0
        else:
            from scipy.optimize import brentq  # 0.4 s, which predictions need not wait for

            return 1.0 / float(brentq(slope, low, high, xtol=1e-10 * low, rtol=1e-10))
    return None


def calibration_error(sure: Float[np.ndarray, " rows"], right: Bool[np.ndarray, " rows"]) -> float:
    """Return the expected calibration error of answers, in [0, 1].

    Bin m contains the rows whose largest probability lies in ((m - 1) / BINS, m / BINS].

    Args:
        sure: The largest probability of each row.
        right: Whether the class of this probability is the true class.
    """
    place = np.clip(np.ceil(sure * BINS).astype(np.int64) - 1, 0, BINS - 1)
    gap = np.bincount(place, weights=right - sure, minlength=BINS)
    return float(np.abs(gap).sum() / max(1, len(right)))


def _softmax(logits: Float[np.ndarray, "rows classes"]) -> Float[np.ndarray, "rows classes"]:
    found: np.ndarray = logits - logits.max(axis=1, keepdims=True)
    np.exp(found, out=found)
    found /= found.sum(axis=1, keepdims=True)
    return found


def _sigmoid(logits: Float[np.ndarray, "rows classes"]) -> Float[np.ndarray, "rows classes"]:
    from scipy.special import expit

    return np.asarray(expit(logits))


PROBABILITIES: Mapping[str, Callable[[np.ndarray], np.ndarray]] = {
    "softmax": _softmax,
    "sigmoid": _sigmoid,
}
"""Probabilities of logits, by the activation of a head."""


def logits_of(
    head: Head, rows: FeatureSet, chosen: Int[np.ndarray, " chosen"]
) -> Float[np.ndarray, "chosen classes"]:
    """Return the logits of a head for some rows, in float64."""
    features = np.asarray(rows.features[chosen], dtype=np.float32)
    logits: np.ndarray = features @ head.weight.T + head.bias
    return logits.astype(np.float64)

"""One temperature for all logits of a model, so that its probabilities match its accuracy.

A head trained to a small loss is surer than it is right. Dividing its logits z by one T > 0 changes
no answer, and softmax(z / T) has the least mean negative log-likelihood of held-out rows at the T
at which, with b = 1 / T,

    d/db Ave[-log softmax(b z)_y] = Ave[sum_k softmax(b z)_k z_k - z_y] = 0.

The likelihood is convex in b: there is one such T, or none (every row is labelled right: the larger
b the better; or the logits are useless: b = 0). If one is needed all the same, z_y gives way to
(1 - e) z_y + e (mean of the other z_k) with e = 1 / (n + 2) for n rows: labels that n right answers
in n make likely, not certain. A class that the head rules out has no probability at any T: it and
its rows are left out. Half of the held-out rows of each class fit T, the others measure it by the
expected calibration error over 15 bins B_m of equal width of the largest probability,

    ECE = sum_m |B_m| / n |accuracy(B_m) - mean probability(B_m)|.

Source: C. Guo, G. Pleiss, Y. Sun, K. Q. Weinberger, "On calibration of modern neural networks",
ICML 2017, Sections 2 and 4.2; J. C. Platt, "Probabilistic outputs for support vector machines and
comparisons to regularized likelihood methods", Advances in Large Margin Classifiers, 1999.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated

import numpy as np
from jaxtyping import Bool, Float, Int
from msgspec import Meta
from scipy.optimize import brentq

from clinit.extract.cache.features import FeatureSet
from clinit.extract.cache.head import Head
from clinit.files.documents import Count
from clinit.headtrain.rows import NEVER

BINS = 15
LEAST_ROWS = 100
"""Held-out rows below which nothing is fitted: half of them would determine one number poorly, and
an error over 15 bins even less."""
MOST_ROWS = 20_000
"""Held-out rows that are looked at: 220 MB of logits of 1,365 classes."""
LEAST_LEAD = 1e-4
"""Lead of the largest divided logit of a row over the next one, in the row with the largest lead:
below it all first answers are as likely as the second ones, and in float32 soon the same."""
_MOST_STEPS = 100
"""Doublings of b on the way to a bracket."""

Share = Annotated[float, Meta(ge=0, le=1)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Temperature:
    """The divisor of the logits of a head, and its effect on its probabilities."""

    value: Annotated[float, Meta(gt=0)]
    """T; above 1, the head as it was trained was too sure."""
    fitted_rows: Count
    """Held-out rows that T has the least negative log-likelihood of."""
    measured_rows: Count
    """Other held-out rows, which the errors were measured on; 0 if nothing was measured."""
    ece_before: Share | None = None
    """Expected calibration error of the head as it was trained, in [0, 1]."""
    ece_after: Share | None = None
    """The same with the logits divided by T."""

    @property
    def unmeasured(self) -> Temperature:
        """The same for other classes, of which no row was measured."""
        return replace(self, measured_rows=0, ece_before=None, ece_after=None)

    def divided(self, head: Head) -> Head:
        """Return a head as trained with its logits divided by T: as it is exported."""
        weight, bias = (part.astype(np.float64) / self.value for part in (head.weight, head.bias))
        return replace(head, weight=weight.astype(np.float32), bias=bias.astype(np.float32))

    def multiplied(self, head: Head) -> Head:
        """Return an exported head as it was trained, up to the rounding at its export.

        In float64: divided again, it has the bits of the exported one.
        """
        weight, bias = (part.astype(np.float64) * self.value for part in (head.weight, head.bias))
        return replace(head, weight=weight, bias=bias)

    def describe(self) -> str:
        """Return the facts about the probabilities, in words."""
        text = f"temperature {self.value:.3g}, fitted on {self.fitted_rows:,} held-out rows"
        if self.ece_before is None or self.ece_after is None:
            return f"{text} before the classes last changed"
        return (
            f"{text}; expected calibration error on {self.measured_rows:,} others"
            f" {100 * self.ece_before:.1f} % without it, {100 * self.ece_after:.1f} % with it"
        )


def divided(head: Head, temperature: Temperature | None) -> Head:
    """Return a head as trained as it is exported: without a temperature, as it is."""
    return head if temperature is None else temperature.divided(head)


def never_wins(head: Head) -> Bool[np.ndarray, " classes"]:
    """Return which classes a head rules out, whatever the features."""
    # Half of it: rows that were divided and multiplied again are not what they were to the bit.
    found: np.ndarray = (head.bias <= NEVER / 2) & ~head.weight.any(axis=1)
    return found


def temperature_of(head: Head, rows: FeatureSet) -> Temperature | None:
    """Fit a temperature to half of some held-out rows, and measure it on the others.

    Args:
        head: As trained.
        rows: Features of images that it was not trained on; labels are rows of the head.

    Returns:
        None if there are fewer than `LEAST_ROWS` rows of classes that the head can answer, or
        there is no such temperature.
    """
    left = np.flatnonzero(~never_wins(head))
    place = np.full(head.num_classes, -1, dtype=np.int64)
    place[left] = np.arange(len(left))
    labels = place[rows.labels]
    order = np.argsort(labels, kind="stable")[np.count_nonzero(labels < 0) :]
    if len(order) < LEAST_ROWS:
        return None
    spaced = np.linspace(0, len(order) - 1, num=min(len(order), MOST_ROWS)).astype(np.int64)
    # In halves of each class: every other row of those sorted by class.
    halves = (order[spaced[::2]], order[spaced[1::2]])
    (fit, of_fit), (judge, of_judge) = (
        (logits_of(head, rows, np.sort(half))[:, left], labels[np.sort(half)]) for half in halves
    )
    value = fit_temperature(fit, of_fit)
    if value is None or float(np.diff(np.partition(fit, -2)[:, -2:]).max()) < LEAST_LEAD * value:
        return None
    return Temperature(
        value=value,
        fitted_rows=len(of_fit),
        measured_rows=len(of_judge),
        ece_before=expected_calibration_error(judge, of_judge),
        ece_after=expected_calibration_error(judge / value, of_judge),
    )


def fit_temperature(
    logits: Float[np.ndarray, "rows classes"],
    labels: Int[np.ndarray, " rows"],
    *,
    smoothed: bool = False,
) -> float | None:
    """Return the temperature of the least mean negative log-likelihood, None if there is none.

    Args:
        logits: In float64; none of a class that is ruled out.
        labels: The column of the class of each row.
        smoothed: Whether 1 / (n + 2) of each label goes evenly to the other classes: then there is
            one although every row is labelled right.
    """
    if not len(labels) or logits.shape[1] < 2:
        return None
    truth = logits[np.arange(len(labels)), labels]
    if smoothed:
        others = (logits.sum(axis=1) - truth) / (logits.shape[1] - 1)
        truth = truth + (others - truth) / (len(labels) + 2)

    def slope(b: float) -> float:
        return float((_softmax(b * logits) * logits).sum(axis=1).mean() - truth.mean())

    if bool((truth >= logits.max(axis=1)).all()):
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
            return 1.0 / float(brentq(slope, low, high, xtol=1e-10 * low, rtol=1e-10))
    return None


def expected_calibration_error(
    logits: Float[np.ndarray, "rows classes"], labels: Int[np.ndarray, " rows"], *, bins: int = BINS
) -> float:
    """Return the expected calibration error of softmax(logits), in [0, 1]."""
    probabilities = _softmax(logits)
    right = probabilities.argmax(axis=1) == labels
    return calibration_error(probabilities.max(axis=1), right, bins=bins)


def calibration_error(
    sure: Float[np.ndarray, " rows"], right: Bool[np.ndarray, " rows"], *, bins: int = BINS
) -> float:
    """Return the expected calibration error of answers, in [0, 1].

    Bin m holds the rows whose largest probability lies in ((m - 1) / bins, m / bins].

    Args:
        sure: The largest probability of each row.
        right: Whether it belongs to the true class.
        bins: Number of bins of equal width.
    """
    place = np.clip(np.ceil(sure * bins).astype(np.int64) - 1, 0, bins - 1)
    gap = np.bincount(place, weights=right - sure, minlength=bins)
    return float(np.abs(gap).sum() / max(1, len(right)))


def _softmax(logits: Float[np.ndarray, "rows classes"]) -> Float[np.ndarray, "rows classes"]:
    found: np.ndarray = logits - logits.max(axis=1, keepdims=True)
    np.exp(found, out=found)
    found /= found.sum(axis=1, keepdims=True)
    return found


def logits_of(
    head: Head, rows: FeatureSet, chosen: Int[np.ndarray, " chosen"]
) -> Float[np.ndarray, "chosen classes"]:
    """Return the logits of a head for some rows, in float64."""
    features = np.asarray(rows.features[chosen], dtype=np.float32)
    logits: np.ndarray = features @ head.weight.T + head.bias
    return logits.astype(np.float64)

"""Choose the ridge of least-square rows by the loss that they will be trained with.

For each lambda of a grid: the leave-one-out logits of the new rows over buffer and new task,
factor and shift of the least loss on these (`calibrate`), and that loss; all other logits stay as
they are. One eigendecomposition serves all lambdas, and each search starts where the last one
ended. The grid has half decades around the eigenvalues, and more where its lower edge is best.

Of the lambdas whose loss does not differ from the least one by more than a standard error, the
largest is chosen (L. Breiman, J. Friedman, R. Olshen, C. Stone, "Classification and regression
trees", 1984, Section 3.4.3). The error is that of the difference, over the same rows: where few
rows tell little, the new rows are pulled towards class means.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from clinit.headtrain.array import as_tensor, namespace
from clinit.headtrain.init.calibrate import Objective, minimise
from clinit.headtrain.init.surroundings import Surroundings, balanced_draw, slices
from clinit.headtrain.least_squares.lambda_curve import LambdaCurve
from clinit.headtrain.least_squares.solve import LambdaPath

MAX_ROWS = 8192
"""The draw that lambdas are compared on."""
ABOVE, BELOW = 4, 10
"""Half decades above and below the largest eigenvalue."""
MOST_BELOW = 20


def loss_curve(around: Surroundings, path: LambdaPath, *, with_bias: bool = True) -> LambdaCurve:
    """Return the leave-one-out loss of calibrated rows at each lambda, and the choice."""
    if len(around) > MAX_ROWS:
        drawn = np.zeros(len(around), dtype=bool)
        drawn[balanced_draw(around.labels, MAX_ROWS)] = True
        around = around.subset(drawn)
    search = _Search(around, path, with_bias)
    losses: dict[float, Float[Tensor, " rows"]] = {}
    centre, step = _half_decades(largest(path)), ABOVE
    while step >= -BELOW or (step >= -MOST_BELOW and _best(losses, around) == min(losses)):
        lam = _lambda(centre + step)
        losses[lam] = search.losses(lam)
        step -= 1
    lams = sorted(losses)
    errors = tuple(float(around.weight @ losses[lam]) for lam in lams)
    return LambdaCurve(
        tuple(lams), errors, "leave-one-out loss", lams.index(_choice(losses, around))
    )


def safe_lambda(path: LambdaPath) -> float:
    """Return the lambda where nothing can be left out to judge by: about the largest eigenvalue.

    There the rows are nearly the differences of class means from the mean of all.
    """
    return _lambda(_half_decades(largest(path)) - 1)


def largest(path: LambdaPath) -> float:
    """Return the largest eigenvalue."""
    return float(path.eigenvalues[-1])


def _half_decades(value: float) -> int:
    return round(2 * math.log10(value)) if value > 0 else 0


def _lambda(half_decades: int) -> float:
    decade, half = divmod(half_decades, 2)
    return float(f"{3 if half else 1}e{decade}")


def _best(losses: Mapping[float, Tensor], around: Surroundings) -> float:
    return min(losses, key=lambda lam: float(around.weight @ losses[lam]))


def _choice(losses: Mapping[float, Tensor], around: Surroundings) -> float:
    """Return the largest lambda within a standard error of the best, with none worse between."""
    best = chosen = _best(losses, around)
    weight = around.weight
    for lam in sorted(losses):
        if lam > best:
            difference = losses[lam] - losses[best]
            mean = weight @ difference
            error = (weight * (difference - mean)).square().sum().sqrt()
            if mean > error:
                break
            chosen = lam
    return chosen


class _Search:
    """Calibrations at one lambda after the other."""

    def __init__(self, around: Surroundings, path: LambdaPath, with_bias: bool) -> None:
        self._around, self._path, self._with_bias = around, path, with_bias
        double = namespace(path.basis).float64
        self._blocks = [
            (path.coordinates(around.features(rows, double)), around.labels[rows])
            for rows in slices(len(around))
        ]
        self._end = np.array([1.0, 0.0])
        """Factor, for logits of variance 1, and shift where the last search ended."""

    def losses(self, lam: float) -> Float[Tensor, " rows"]:
        """Return the loss of each row at a lambda."""
        data = self._around.data
        classes = slice(data.start, data.stop)
        logits = torch.cat([
            as_tensor(self._path.left_out(rows, labels, lam, classes, with_bias=self._with_bias))
            for rows, labels in self._blocks
        ])  # fmt: skip
        size = np.array([float(logits.std()) or 1.0, 1.0])
        objective = Objective.of(self._around, logits)
        start = self._end / size
        found, _, _ = minimise(objective, start, objective.expansion(start))
        self._end = found * size
        moved = found[0] * logits + found[1]
        return torch.cat([
            self._around.terms(moved[rows], rows).value for rows in slices(len(logits))
        ])  # fmt: skip

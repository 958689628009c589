"""Discriminants refined by the loss: the maximum a posteriori of a logistic model.

With x = L^-1 (h - m), A = L L^T, the rows w of the new classes minimise

    CE over old images + CE over new images + k / (2 n) sum_c |w_c - w_0c|^2,

each CE a mean over classes, n the number of new images. So the prior of a row has the discriminant
w_0 as mean and A^-1 as shape of its covariance, and weighs as much as k images. The logit of an
image varies by n |x|^2 / k under it, and |x|^2 grows with the dimension d: so k is usually
k_0 = `KEPT` d. Images that the rows were computed without choose k / k_0 of `STRENGTHS`: with CE_i
their losses, as in `clinit.headtrain.heads.start.discriminant_choice`, it has the least
sum_i w_i CE_i + log(k / k_0)^2, in nats.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple, TypeVar

import numpy as np
from jaxtyping import Float
from scipy.linalg import solve_triangular
from scipy.optimize import minimize

from clinit.headtrain.heads.linear import Rows
from clinit.headtrain.heads.start.discriminant import Discriminants
from clinit.headtrain.heads.start.judges import Judges, left_out_logits

KEPT = 1 / 64
"""The usual weight of the prior, in images per feature."""
STRENGTHS = (0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0)
MOST_STEPS = 60

Candidate = TypeVar("Candidate", bound=tuple)  # type: ignore[type-arg]


def climbed_down(costs: Sequence[float], value: Callable[[int], Candidate]) -> Candidate:
    """Return the least of the values, going down from the least cost in both directions."""
    first = int(np.argmin(costs))
    found = {first: value(first)}
    for step in (-1, 1):
        index = first + step
        while 0 <= index < len(costs):
            found[index] = value(index)
            if found[index] > found[index - step]:
                break
            index += step
    return min(found.values())


class Refined(NamedTuple):
    """The loss of refined rows, the number of their strength, and the rows without each fold."""

    value: float
    number: int
    rows: dict[int, Rows]


@dataclass(frozen=True, eq=False)
class Refinement:
    """The images that refine rows, and the rows they start from."""

    old: Judges
    new: Judges
    images: float
    """Number of new images; a group counts as one."""
    judged: float
    """Number of those in a fold."""
    loss: Callable[..., tuple[float, np.ndarray]]
    """`clinit.headtrain.heads.start.judges.cross_entropy` or `logistic_loss`."""
    system: Discriminants
    begin: dict[int, Rows]
    """w_0 without the images of each fold. The shape of the prior is the same for all folds."""

    def best(self) -> dict[int, Rows]:
        """Return the rows of all images, and without each fold, of the strength of least loss."""
        left_out = self.new.fold >= 0
        if not left_out.any():
            return self.rows(1.0)
        sides = ((self.old, None), (self.new.part(left_out), self.new.labels[left_out]))
        costs = np.log(STRENGTHS) ** 2

        def refined(number: int) -> Refined:
            rows, value = self.rows(STRENGTHS[number]), float(costs[number])
            for side, target in sides:
                logits = left_out_logits(rows, side, side.fold)
                value += self.judged * self.loss(logits, side, target)[0]
            return Refined(value, number, rows)

        return climbed_down(costs.tolist(), refined).rows

    def rows(self, strength: float) -> dict[int, Rows]:
        """Return the rows of all images, and without each fold; the prior weighs `strength` k_0."""
        factor, centre, found = self.system.factor, self.system.moments.centre, {}
        strength *= KEPT * len(centre)
        for left, begin in self.begin.items():
            bias = begin.bias + begin.weight @ centre
            start = np.concatenate([begin.weight @ factor, bias[:, None]], axis=1)
            end = self._minimum(start, left, strength / max(1.0, self.images))
            weight = solve_triangular(factor, end[:, :-1].T, lower=True, trans="T").T
            found[left] = Rows(weight, end[:, -1] - weight @ centre)
        return found

    @cached_property
    def _inputs(self) -> list[Float[np.ndarray, "rows columns"]]:
        """The rows x of both sides, and a column of ones."""
        both = (self.system.whitened(side.features) for side in (self.old, self.new))
        return [np.insert(rows, rows.shape[1], 1.0, axis=1) for rows in both]

    def _minimum(
        self, start: Float[np.ndarray, "new columns"], left: int, strength: float
    ) -> Float[np.ndarray, "new columns"]:
        sides = []
        for side, inputs in zip((self.old, self.new), self._inputs, strict=True):
            stay = side.fold != left
            target = None if side is self.old else side.labels[stay]
            sides.append((side.part(stay), inputs[stay], target))

        def objective(point: np.ndarray) -> tuple[float, np.ndarray]:
            rows = point.reshape(start.shape)
            moved = rows - start
            total, slope = strength / 2 * float((moved**2).sum()), strength * moved
            for side, inputs, target in sides:
                value, gradient = self.loss(inputs @ rows.T, side, target)
                total, slope = total + value, slope + gradient.T @ inputs
            return total, slope.ravel()

        end = minimize(
            objective, start.ravel(), jac=True, method="L-BFGS-B", options={"maxiter": MOST_STEPS}
        )
        return np.asarray(end.x).reshape(start.shape)

"""Scale of new rows by norms or by the loss.

`calibrate` finds one factor s and one shift t for all new rows.

The new rows become (s v_k, s a_k + t), where (v_k, a_k) are the raw rows, so that data row i has
the logits u_ik = s g_ik + t with g_ik = v_k . h_i + a_k. If the biases o_k are to be kept, they are
neither scaled nor shifted: u_ik = s g_ik + o_k with g_ik = v_k . h_i, and t = 0. (s, t) minimises

    F(s, t) = sum_i w_{y_i} loss(u_i, y_i),    w_c = 1 / (C n_c),

over buffer and new task with all other rows fixed (`new_share` multiplies the weights of classes
that came with the head by one factor and all other weights by another). F is convex, because each
loss is convex in its logits, and the logits are affine in (s, t). With q the gradient and
diag(d) - p p^T the Hessian of a loss in the new logits,

    dF = sum_i w (q.g, q.1),    d2F = sum_i w [[d.g^2 - (p.g)^2,  d.g - (p.g)(p.1)],
                                               [ symmetric,       d.1 - (p.1)^2   ]].

The g are logits of the raw rows or leave-one-out logits (`left_out`). If the g separate the
classes, F decreases for ever as s grows, and the rows would outgrow all later rows. To prevent
this, a prior is added to F:

    (PRIOR / 2) (s / s_0)^2,

where s_0 makes the logits of the new rows vary over the data as much as the old logits
(class-balanced variances, averaged over rows). Norms of rows would not do in place of logits:
a small lambda gives long rows along directions in which the features hardly vary.

F is minimised by Newton's method with backtracking (S. Boyd, L. Vandenberghe, "Convex
Optimization", 2004, Algorithm 9.5). If the softmax is saturated, d2F vanishes but dF does not.
Therefore DAMPING times the curvature of 1/2 sum_i w |u_i|^2 is added to d2F, too little to matter
elsewhere. The fixed logits enter through two numbers per row, computed once.

Logits are computed as products of arrays, on their device; later steps use tensors in the same
memory. A Newton step copies seven numbers to the host. Searches for heads of equal starts go on
side by side (`together`): each is a generator that yields a point, and the expansions at the points
of all searches are computed at once.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias, TypeVar

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from clinit.headtrain.heads.array import as_array, beside, namespace, slices, to_numpy
from clinit.headtrain.heads.linear import Rows
from clinit.headtrain.heads.start.calibration_set import (
    CalibrationSet,
    mean_variance,
    terms_of,
    weighted_moments,
)
from clinit.headtrain.heads.start.new_rows import NewClasses


def affine(raw: Rows, factors: float | Float[np.ndarray, " new"], shift: float, kept: Any) -> Rows:
    """Return rows times factors, with shifted biases or, if given, the kept ones."""
    each = beside(raw.weight, np.full(raw.bias.shape, factors))
    bias = each * raw.bias + shift if kept is None else kept
    return Rows(each[:, None] * raw.weight, bias)


def norm_factor(rows: Rows, data: NewClasses) -> float:
    """Return mean norm of the head's existing rows / mean norm of the new rows, as `norm_ratio`."""
    return norm_ratio(data.head.weight[: data.start, :], rows.weight)


def row_factors(rows: Rows, data: NewClasses) -> Float[np.ndarray, " new"]:
    """Return one factor per new row, which gives the row the mean norm of the existing rows."""
    existing, new = _norms(data.head.weight[: data.start, :]), _norms(rows.weight)
    if not len(existing):
        return np.ones(len(new))
    return np.where(new > 0, existing.mean() / np.where(new > 0, new, 1.0), 1.0)


def norm_ratio(existing: Float[Any, "rows dim"], new: Float[Any, "new dim"]) -> float:
    """Return mean norm of `existing` rows / mean norm of `new` rows; 1 if either is zero."""
    norms, others = _norms(existing), _norms(new)
    return float(norms.mean() / others.mean()) if len(norms) and others.mean() > 0 else 1.0


def _norms(weight: Float[Any, "rows dim"]) -> Float[np.ndarray, " rows"]:
    return to_numpy(namespace(weight).linalg.vector_norm(weight, axis=1))


MAX_STEPS = 100
DAMPING = 1e-9
PRIOR = 1e-3
"""Weight of the prior on s. At s = 3 s_0, new logits vary three times as much as old logits, and
the prior is 0.0045 nats: negligible if the data themselves bound the factor."""
TOLERANCE = 1e-10
"""Stop when a Newton step promises to lower the loss by less than this times 1 + |loss|."""


Point: TypeAlias = Float[np.ndarray, " 2"]
"""(s, t)."""
Expansion = tuple[float, Point, Float[np.ndarray, "2 2"]]
"""Value, gradient and Hessian."""
Sought = TypeVar("Sought")
Search: TypeAlias = "Generator[tuple[Objective, Point], Expansion, Sought]"
"""Yields an objective and a point, is sent the expansion there, and returns what it finds."""


class Calibration(NamedTuple):
    """Result of calibration; the losses exclude the prior."""

    factor: float
    shift: float
    loss_before: float
    """Loss of the raw rows: factor 1, shift 0."""
    loss_after: float
    steps: int


def calibrate(
    sample: CalibrationSet,
    logits: Float[Tensor, "rows new"],
    starts: Sequence[Point],
    *,
    kept_bias: Float[Tensor, " new"] | None = None,
) -> Search[Calibration]:
    """Find the factor and the shift of the new rows that minimise the loss.

    Args:
        sample: The data, and all fixed logits.
        logits: g, the logits of the raw new rows for these data; preferably leave-one-out logits,
            which are closer to the logits of unseen data.
        starts: The search starts from the point with the least loss; `loss_before` is that of the
            first.
        kept_bias: Biases to keep unchanged. The shift is then 0, and `logits` exclude biases.
    """
    objective = Objective.of(sample, logits, kept_bias)
    there = []
    for start in starts:
        there.append((yield objective, start))
    best = int(np.argmin([value for value, _, _ in there]))
    point, lowest, steps = yield from minimise(objective, starts[best], there[best])
    before = there[0][0] - objective.penalty(starts[0])
    after = lowest - objective.penalty(point)
    return Calibration(float(point[0]), float(point[1]), before, after, steps)


@dataclass(frozen=True, slots=True, eq=False)
class Objective:
    """F(s, t) and its derivatives, from logits computed once."""

    sample: CalibrationSet
    logits: Float[Tensor, "rows new"]
    """g: raw logits of the new rows."""
    kept: Float[Tensor, " new"] | None
    """o: biases that are neither scaled nor shifted, so that t = 0; None if t is free."""
    squares: Float[np.ndarray, " 2"]
    """sum_i w (|g_i|^2, number of new rows): the curvature of half the squares."""
    prior: float
    """Weight of s^2 / 2, 1/s_0^2 included; 0 if s_0 is 0 or undefined, because the logits of old
    or new rows do not vary over the data."""

    @classmethod
    def of(
        cls,
        sample: CalibrationSet,
        logits: Float[Tensor, "rows new"],
        kept_bias: Float[Tensor, " new"] | None = None,
    ) -> Objective:
        """Derive s_0 from the variances of new and old logits."""
        moments, square = [], logits.new_zeros(())
        for rows in slices(len(logits), _block_rows(logits)):
            g, weight = logits[rows], sample.weight[rows]
            moments.append(weighted_moments(as_array(g), as_array(weight)))
            square += weight @ g.square().sum(1)
        return cls(
            sample=sample,
            logits=logits,
            kept=kept_bias,
            squares=np.array([float(square), logits.shape[1] if kept_bias is None else 0.0]),
            prior=PRIOR * mean_variance(sum(moments)) / sample.spread if sample.spread > 0 else 0.0,
        )

    def penalty(self, point: Point) -> float:
        """Return the prior at (s, t)."""
        return self.prior / 2 * float(point[0]) ** 2


def together(searches: Sequence[Search[Sought]]) -> list[Sought]:
    """Return what searches on the same data for several heads find, side by side."""
    ends: dict[int, Sought] = {}
    answers: dict[int, Any] = dict.fromkeys(range(len(searches)))
    while answers:
        asked: dict[int, tuple[Objective, Point]] = {}
        for number, answer in answers.items():
            try:
                asked[number] = searches[number].send(answer)
            except StopIteration as end:
                ends[number] = end.value
        answers = dict(zip(asked, expansions([*asked.values()]), strict=True)) if asked else {}
    return [ends[number] for number in range(len(searches))]


def expansions(asked: Sequence[tuple[Objective, Point]]) -> Iterator[Expansion]:
    """Yield value, gradient and Hessian of each F plus the prior at a point.

    All have the same rows, labels and weights of the data. Most data are so small that the time
    depends on the number of PyTorch calls rather than on the size of the arrays, so there are few
    calls: as many objectives are expanded at once as a block has room for.
    """
    size, most = len(asked[0][0].logits), _block_rows(asked[0][0].logits)
    totals = []
    for heads in slices(len(asked), max(1, most // size)):
        blocks = [_sums(asked[heads], rows) for rows in slices(size, most)]
        totals.append(sum(blocks[1:], start=blocks[0]))
    for (each, point), found in zip(asked, torch.cat(totals).cpu().numpy(), strict=True):
        value, gradient, hessian = float(found[0]), found[1:3], found[3:].reshape(2, 2)
        gradient[0] += each.prior * point[0]
        hessian[0, 0] += each.prior
        if each.kept is not None:
            gradient[1] = hessian[0, 1] = hessian[1, 0] = hessian[1, 1] = 0.0
        yield value + each.penalty(point), gradient, hessian


def _sums(asked: Sequence[tuple[Objective, Point]], rows: slice) -> Float[Tensor, "heads 7"]:
    """Return value, gradient and Hessian of each F over some rows."""
    objectives, points = [each for each, _ in asked], np.array([point for _, point in asked])
    first = objectives[0]
    g = first.logits[rows][None]
    if any(each.logits is not first.logits for each in objectives):
        g = torch.stack([each.logits[rows] for each in objectives])
    s, bias = torch.as_tensor(points.T[..., None, None], device=g.device)
    if kept := [each.kept for each in objectives if each.kept is not None]:
        bias = torch.stack(kept)[:, None]
    logits = (s * g).add_(bias)
    local = terms_of([each.sample for each in objectives], logits.flatten(0, 1), rows)
    # Sums over new rows of the derivatives of the loss times 1, g and g^2.
    plain = torch.stack([local.gradient, local.diagonal, local.outer]).view(3, *logits.shape)
    times_g = plain * g
    sums = torch.stack([plain.sum(3), times_g.sum(3)])
    square = (times_g[1] * g).sum(2)
    (slope, curvature, p), (slope_g, curvature_g, p_g) = sums
    mixed = curvature_g - p_g * p
    second = (square - p_g * p_g, mixed, mixed, curvature - p * p)
    parts = [local.value.view_as(slope), slope_g, slope, *second]
    return torch.stack(parts, dim=1) @ first.sample.weight[rows]


def _block_rows(logits: Float[Tensor, "rows new"]) -> int:
    """Return the rows of a block that a CPU's cache holds, or more for CUDA."""
    return max(4096, 2**24 // logits.shape[1]) if logits.is_cuda else 4096


def minimise(
    objective: Objective, point: Point, expansion: Expansion
) -> Search[tuple[Point, float, int]]:
    """Descend from `point`, whose expansion is given; return end point, value, number of steps.

    A candidate is nearly always accepted, and its expansion is reused by the next step.
    """
    damping = np.diag(DAMPING * objective.squares)
    for steps in range(MAX_STEPS):
        value, gradient, hessian = expansion
        step = newton_step(gradient, hessian + damping)
        promise = -float(gradient @ step) / 2
        if not promise > TOLERANCE * (1 + abs(value)):
            return point, value, steps
        length = 1.0
        while True:
            candidate = point + length * step
            reached = yield objective, candidate
            if reached[0] <= value - 1e-4 * length * 2 * promise:
                break
            length /= 2
            if length < 1e-16:  # no descent left in floating point
                return point, value, steps
        point, expansion = candidate, reached
    return point, expansion[0], MAX_STEPS


def newton_step(
    gradient: Float[np.ndarray, " 2"], hessian: Float[np.ndarray, "2 2"]
) -> Float[np.ndarray, " 2"]:
    """Return -H^+ gradient, which is zero along directions without curvature (rows of zeros).

    H is first scaled to a unit diagonal, because s and t differ by the size of a raw logit.
    """
    diagonal = np.sqrt(np.maximum(np.diag(hessian), 0.0))
    scale = np.divide(1.0, diagonal, out=np.zeros(2), where=diagonal > 1e-150)
    eigenvalues, basis = np.linalg.eigh(hessian * np.outer(scale, scale))
    inverse = np.divide(1.0, eigenvalues, out=np.zeros(2), where=eigenvalues > 1e-12)
    return np.asarray(-scale * (basis @ (inverse * (basis.T @ (scale * gradient)))))

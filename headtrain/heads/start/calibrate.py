"""Scale of new rows by norms or by the loss, lambda by the loss, and rows fitted to the loss.

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

The g are logits of the raw rows or leave-one-out logits (`calibration_set`). If the g separate the
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

`--lambda auto` chooses the ridge of least-square rows by the loss of the training (`loss_curve`).
For each lambda of a grid, it computes the leave-one-out logits of the new rows over buffer and new
task, the factor (at least 0) and shift of the least loss on these logits, and this loss; all other
logits stay fixed. One eigendecomposition serves all lambdas, and each fit starts from the result of
the previous fit. The grid has half-decade steps around the largest eigenvalue: every third lambda
is tried first, then the neighbours of the best. After the first task of a head, the search starts
at its last lambda, which leaves a few to try.

Fitted rows (`fit`) minimise the training loss, and a ridge holds them near their start.

With x_i = (h_i / r, 1), r^2 the weighted mean of |h|^2 / d, so that all entries of x are of about
the same size, W = (r V, b) the new rows and W_0 the rows that the search starts from, the rows
minimise

    G(W) = sum_i w_{y_i} loss(u_i, y_i) + ridge / (2 C n) sum_k |W_k - W_0k|^2,
    w_c = 1 / (C n_c),

over buffer and new task, with n the mean number of rows of a new class. A row of data of a new
class weighs about 1 / (C n). The ridge weighs as much as `ridge` such rows, however many rows there
are. All other logits are fixed. Each loss is convex in its logits, and the logits are affine in W,
so G is strictly convex.

The minimiser is approached by PyTorch's L-BFGS, with a line search for the strong Wolfe conditions
(J. Nocedal, S. J. Wright, "Numerical optimization", 2006, Algorithms 7.5 and 3.5). Products with
features use the dtype of the features, sums and rows float64.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias, TypeVar

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from clinit.headtrain.heads.array import (
    as_array,
    as_tensor,
    as_type,
    beside,
    namespace,
    slices,
    take,
    to_numpy,
)
from clinit.headtrain.heads.groups import balanced_draw
from clinit.headtrain.heads.linear import Rows
from clinit.headtrain.heads.start.calibration_set import (
    CalibrationSet,
    joined,
    less_owed,
    mean_variance,
    terms_of,
    weighted_moments,
)
from clinit.headtrain.heads.start.new_rows import NewClasses
from clinit.headtrain.heads.statistics.leave_one_out import Unit
from clinit.headtrain.heads.statistics.solve import LambdaCurve, LambdaPath


def affine(
    raw: Rows, factors: float | Float[np.ndarray, " new"], shift: float, kept: Any | None
) -> Rows:
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
    usable = eigenvalues > 1e-12
    inverse = np.divide(1.0, eigenvalues, out=np.zeros(2), where=usable)
    return np.asarray(-scale * (basis @ (inverse * (basis.T @ (scale * gradient)))))


MAX_ROWS, MOST_PRODUCTS = 8192, 2**36
"""Maximum number of rows on which lambdas are compared, and of the products that each of their
numbers takes with all others: 4,096 rows of 4,096 features."""
ABOVE, BELOW = 4, 10
"""Half decades above and below the largest eigenvalue."""
MOST_BELOW, STRIDE = 20, 3
SHARED_BYTES = 2**23
"""Maximum size of logits at one lambda that are kept for other heads."""


def compared(sample: CalibrationSet) -> CalibrationSet:
    """Return the rows on which lambdas are compared: at most `MAX_ROWS`."""
    dim = sample.data.head.weight.shape[1]
    most = min(MAX_ROWS, MOST_PRODUCTS // dim**2)
    if len(sample) <= most:
        return sample
    drawn = np.zeros(len(sample), dtype=bool)
    drawn[balanced_draw(sample.labels, most)] = True
    return sample.subset(drawn)


def loss_curve(
    sample: CalibrationSet, path: LambdaPath, *, with_bias: bool = True, near: float | None = None
) -> Search[LambdaCurve | None]:
    """Return the leave-one-out loss of calibrated rows at the lambdas that the search has tried.

    From the best lambda of a coarse grid, or from `near`, the search goes on to better neighbours
    until there is none. Return None if no lambda is better than rows of zeros.
    """
    search, centre = _Search(sample, path, with_bias), _half_decades(path)
    lowest, highest = centre - MOST_BELOW, centre + ABOVE
    yield from search.begin()
    losses: dict[int, float] = {}

    def best_of(*steps: int) -> Search[int]:
        """Try the lambdas of some numbers of half decades that are left; return the best yet."""
        for step in steps:
            if step not in losses and lowest <= step <= highest:
                losses[step] = yield from search.loss(_lambda(step))
        return min(losses, key=losses.__getitem__)

    start = highest if near is None else round(2 * math.log10(near))
    best = yield from best_of(min(max(start, lowest), highest))
    if near is None or losses[best] >= search.without:
        for step in range(highest, lowest - 1, -STRIDE):
            best = yield from best_of(step)
            if step < centre - BELOW and losses[best] < losses[step]:
                break
    while best != (best := (yield from best_of(best - 1, best + 1))):
        pass
    if losses[best] >= search.without:
        return None
    steps = sorted(losses)
    lams, found = (_lambda(step) for step in steps), (losses[step] for step in steps)
    return LambdaCurve(tuple(lams), tuple(found), "leave-one-out loss")


def safe_lambda(path: LambdaPath) -> float:
    """Return a lambda for data from which nothing can be left out: about the largest eigenvalue.

    Rows are then nearly proportional to the class means minus the mean of all classes.
    """
    return _lambda(_half_decades(path) - 1)


def _half_decades(path: LambdaPath) -> int:
    """Return the number of half decades of the largest eigenvalue."""
    value = float(path.eigenvalues[-1])
    return round(2 * math.log10(value)) if value > 0 else 0


def _lambda(half_decades: int) -> float:
    decade, half = divmod(half_decades, 2)
    return float(f"{3 if half else 1}e{decade}")


def logits_of(
    sample: CalibrationSet, path: LambdaPath, lam: float, *, with_bias: bool
) -> Float[Tensor, "rows new"] | None:
    """Return the leave-one-out logits at a lambda, if `loss_curve` has computed and kept them."""
    found = path.shared.get((sample.drawn.tobytes(), with_bias), {}).get(lam)
    return None if found is None else found.clone()


class _Search:
    """Calibrates the new rows at one lambda after another."""

    def __init__(self, sample: CalibrationSet, path: LambdaPath, with_bias: bool) -> None:
        self._sample, self._path, self._with_bias = sample, path, with_bias
        self._alone = torch.from_numpy(sample.alone).to(sample.target.device)
        self._singles = sample.subset(sample.alone)
        self._known = path.shared.setdefault((sample.drawn.tobytes(), with_bias), {})
        """Coordinates, and logits by lambda: heads of one bank share them."""
        self._end = np.array([1.0, 0.0])
        """Factor, for logits of variance 1, and shift at the end of the last search."""

    def begin(self) -> Search[None]:
        """Compute the loss of rows of zeros."""
        sample = self._sample
        zeros = sample.weight.new_zeros(len(sample), sample.data.stop - sample.data.start)
        _, self.without = yield from self._calibrated(zeros)

    def loss(self, lam: float) -> Search[float]:
        """Return the class-balanced loss at a lambda, with a factor of at least 0."""
        if (logits := self._known.get(lam)) is None:
            logits = self._logits(lam)
            if logits.nbytes <= SHARED_BYTES:
                self._known[lam] = logits
        factor, loss = yield from self._calibrated(logits)
        return loss if factor > 0 else self.without

    @property
    def _coordinates(
        self,
    ) -> tuple[list[tuple[Unit, Any]], Int[np.ndarray, " rows"], tuple[Any, Any] | None]:
        """Blocks of rows in the eigenbasis, the place of each row, and rows that are alone.

        The latter with the variances of images of one class.
        """
        if None not in self._known:
            path, features = self._path, self._sample.data.features
            double = namespace(path.basis).float64
            units, places = self._sample.blocks(path.statistics)
            parts = (path.coordinates(as_type(take(features, u.all_rows), double)) for u in units)
            own = None
            if len(self._singles):
                alone = path.coordinates(self._singles.features(slice(None), double))
                own = alone, path.variances(path.statistics.population_covariance)
            self._known[None] = list(zip(units, parts, strict=True)), places, own
        return self._known[None]  # type: ignore[no-any-return]

    def _logits(self, lam: float) -> Float[Tensor, "rows new"]:
        """Return the leave-one-out logits at a lambda."""
        data, (blocks, places, own) = self._sample.data, self._coordinates
        new = slice(data.start, data.stop)
        left_out = (
            self._path.left_out(
                coordinates, data.labels, lam, unit, new,
                shares=data.shares, with_bias=self._with_bias,
            )
            for unit, coordinates in blocks
        )  # fmt: skip
        logits = joined(left_out, places)
        if own is not None:
            scores, owed = self._path.of_other_rows(*own, lam, new, with_bias=self._with_bias)
            logits[self._alone] = less_owed(self._singles, as_tensor(scores), owed)
        return logits

    def _calibrated(self, logits: Float[Tensor, "rows new"]) -> Search[tuple[float, float]]:
        size = np.array([float(logits.std()) or 1.0, 1.0])
        found = yield from calibrate(self._sample, logits, [self._end / size])
        self._end = np.array([found.factor, found.shift]) * size
        return found.factor, found.loss_after


FIT_STEPS = 30


class Fit(NamedTuple):
    """Result of fitting; the losses exclude the ridge."""

    rows: Rows
    loss_before: float
    """Loss of the rows that the search starts from."""
    loss_after: float
    steps: int


def fit(
    sample: CalibrationSet,
    begin: Rows,
    ridge: float,
    *,
    fits_bias: bool = True,
    max_steps: int = FIT_STEPS,
) -> Fit:
    """Minimise G from rows (V_0, b_0).

    Args:
        sample: The data, and all fixed logits.
        begin: Rows that the search starts from; the ridge holds the result near them.
        ridge: Strength of the ridge, in rows of data.
        fits_bias: Whether the biases may move.
        max_steps: Bound on the steps of L-BFGS.
    """
    data, features = sample.data, sample.wide_features()
    squares = sample.weight @ features.square().sum(1, dtype=torch.float64)
    size = float((squares / features.shape[1]).sqrt()) or 1.0
    start = torch.cat([size * as_tensor(begin.weight), as_tensor(begin.bias)[:, None]], dim=1)
    rows = start.clone().requires_grad_()
    rows_per_class = float(data.counts[data.start :].mean())
    classes = float(len(np.unique(sample.labels)))
    if sample.new_share is not None:  # the C at which 1 / C is the weight of a new class
        classes = (data.stop - data.came_with) / sample.new_share
    strength = ridge / (classes * rows_per_class)
    values: list[float] = []

    def evaluate() -> Tensor:
        moved = rows.detach() - start
        value, gradient = _loss(sample, features, rows.detach(), size)
        if not fits_bias:
            gradient[:, -1] = 0.0
        rows.grad = gradient + strength * moved
        values.append(value)
        return gradient.new_tensor(value + strength / 2 * float(moved.square().sum()))

    search = torch.optim.LBFGS(
        [rows], max_iter=max_steps, max_eval=2 * max_steps, history_size=10,
        tolerance_grad=1e-7, tolerance_change=1e-9, line_search_fn="strong_wolfe",
    )  # fmt: skip
    with torch.enable_grad():
        search.step(evaluate)
    found = rows.detach()
    after, _ = _loss(sample, features, found, size)
    weight, bias = (found[:, :-1] / size).cpu().numpy(), found[:, -1].cpu().numpy()
    end = Rows(beside(begin.weight, weight), beside(begin.weight, bias))
    return Fit(end, values[0], after, int(search.state[rows]["n_iter"]))


def _loss(
    sample: CalibrationSet, features: Float[Tensor, "rows dim"], rows: Tensor, size: float
) -> tuple[float, Tensor]:
    weight = (rows[:, :-1] / size).to(features.dtype)
    gradient = torch.zeros_like(rows)
    value = rows.new_zeros(())
    for block in slices(len(features)):
        logits = (features[block] @ weight.T).double() + rows[:, -1]
        local = terms_of([sample], logits, block)
        weighted = sample.weight[block, None] * local.gradient
        value += sample.weight[block] @ local.value
        gradient[:, :-1] += (weighted.to(features.dtype).T @ features[block]).double() / size
        gradient[:, -1] += weighted.sum(0)
    return float(value), gradient

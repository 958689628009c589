"""New rows as shrunken discriminants, refined by the loss and balanced against the old rows.

With mu_c the mean of a new class, m the mean of the means of all classes, S the covariance within
classes, pooled over old and new classes, and d its dimension,

    A = (1 - g) S + g tr(S) / d I,    u_c = A^-1 (mu_c - m),
    b_c = -u_c.m - rho / 2 (mu_c - m).u_c.

g = 1 gives class means, g = 0 and rho = 1 linear discriminants (J. H. Friedman, "Regularized
discriminant analysis", JASA 84, 1989). The quadratic term of the bias contains the noise of the
mean, which is large if there are few images, so that rho is free.

One objective chooses g, rho, the scale s and the shift t of the logits s (u_c.h + b_c) + t:

    sum_i w_i CE_i  +  (logit g - logit g_0)^2 / (2 1.5^2)  +  (rho - rho_0)^2 / (2 0.35^2)
                    +  log(s / s_0)^2 / (2 0.5^2)

in nats. Each new class with several independent images is judged by images that its row was
computed without (five folds). The only image of a class is judged by the expected logit of another
image, u_c.(h - m) - o: with h = mu + e and u_c = A^-1 (mu + e - m), it owes e.A^-1 e to itself. Of
an image that is part of S, the mean is t = tr(A^-1 S). An image that is not owes more,

    o_0 = t / (1 - (1 - g) t / f)

with f the degrees of freedom of S: a deviation left out of S raises its square like this. And new
classes may vary more than old ones. With T the mean square of L^-1 h, A = L L^T, about the mean of
the old images, (T - t) K / (K - 1) of it lies between the K old classes. The share within classes
is taken to be that of old classes, but no smaller than S has it: with T' the same as T of the new
images, and one of their C classes spread as old ones,

    o = o_0 max(1, 1 / C + T' / (o_0 + (T - t) K / (K - 1))).

New classes weigh as many images as were judged, and all old images together the same. So one image
more moves the sum by the share of one image, and with few images the priors decide:
g_0 / (1 - g_0) = 1 + 5 d / f, rho_0 = n / (n + 2) with n images per new class, and s_0, with which
the new logits of old images vary as much as their old logits.

From there, the rows are refined: with x = L^-1 (h - m), rows v minimise the same cross
entropy plus `KEPT` / 2 |v - v_0|^2 per new image. This is the maximum a posteriori of a logistic
model whose prior has the discriminants as mean and A^-1 as shape of its covariance.

For a head whose classes are independent (sigmoid), CE is the logistic loss of each new class by
itself, sum_k log(1 + exp z_k) - z_y.

Finally the shift is set by a price: as many points of accuracy as old classes may lose, on old
images that the rows were refined without. It is not raised further than left-out new images gain.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from scipy.linalg import cho_solve, cholesky, solve_triangular
from scipy.optimize import minimize
from scipy.special import expit, logsumexp

from clinit.headtrain.heads.array import beside, take, to_numpy
from clinit.headtrain.heads.groups import balanced_draw
from clinit.headtrain.heads.linear import Rows
from clinit.headtrain.heads.start.calibrate import norm_factor
from clinit.headtrain.heads.start.new_rows import NewClasses
from clinit.headtrain.heads.start.scale import Balance, Initialisation, LeftOut

SHRINKAGES = (0.95, 0.9, 0.7, 0.5, 0.3, 0.1, 0.03)
QUADRATICS = (0.0, 0.25, 0.5, 0.75, 1.0)
FOLDS = 5
KEPT = 10.0
"""Weight of the prior in the refinement, in images; 1 to 60 differ by less than a point."""
ALL = -2
"""In place of a fold: no row is left out."""
MOST_STEPS = 60
OLD_ROWS, NEW_ROWS = 1024, 2048
"""Rows that judge; at least one of each class."""


class Moments(NamedTuple):
    """What rows are computed from: means of new classes, mean of all means, S."""

    means: Float[np.ndarray, "new dim"]
    centre: Float[np.ndarray, " dim"]
    within: Float[np.ndarray, "dim dim"]


@dataclass(frozen=True, slots=True, eq=False)
class Discriminants:
    """A factorisation of A, for one shrinkage."""

    moments: Moments
    factor: Float[np.ndarray, "dim dim"]
    """L, lower triangular."""
    weight: Float[np.ndarray, "new dim"]
    """u_c."""

    @classmethod
    def of(cls, moments: Moments, shrinkage: float) -> Discriminants:
        """Factorise A; without any variance within classes, A is the identity."""
        means, centre, within = moments
        system = (1 - shrinkage) * within
        level = np.trace(within) / len(within)
        least = 1e-12 * (means**2).mean()  # below, rounding errors in place of zeros
        system[np.diag_indices_from(system)] += shrinkage * level if level > least else 1.0
        factor = cholesky(system, lower=True, overwrite_a=True, check_finite=False)
        half = solve_triangular(factor, (means - centre).T, lower=True, check_finite=False)
        weight = solve_triangular(factor, half, lower=True, trans="T", check_finite=False)
        return cls(moments, factor, weight.T)

    def rows(self, quadratic: float) -> Rows:
        """Return u_c and b_c."""
        squares = ((self.moments.means - self.moments.centre) * self.weight).sum(1)
        return Rows(self.weight, -self.weight @ self.moments.centre - quadratic / 2 * squares)

    def own_part(self) -> float:
        """Return tr(A^-1 S): what the logit of an image that is part of S owes to itself."""
        return float(np.trace(cho_solve((self.factor, True), self.moments.within)))

    def whitened(self, features: Float[np.ndarray, "rows dim"]) -> Float[np.ndarray, "rows dim"]:
        """Return L^-1 (h - m)."""
        return solve_triangular(self.factor, (features - self.moments.centre).T, lower=True).T


class Optimum(NamedTuple):
    """The least value of the objective, and its place."""

    value: float
    shrinkage: float
    quadratic: float
    scale: float
    shift: float


@dataclass(frozen=True, slots=True, eq=False)
class Judges:
    """Rows of one side, in float64, with the logits of the rows of the head that stay fixed."""

    features: Float[np.ndarray, "rows dim"]
    labels: Int[np.ndarray, " rows"]
    """For new rows, counted from the first new class."""
    fold: Int[np.ndarray, " rows"]
    """The fold in which the row is left out; -1: never."""
    weight: Float[np.ndarray, " rows"]
    """Sums to one."""
    highest: Float[np.ndarray, " rows"]
    """Largest fixed logit."""
    mass: Float[np.ndarray, " rows"]
    """Log of the sum of the exponentials of the fixed logits."""
    own: Float[np.ndarray, " rows"]
    """Fixed logit of the class of the row; 0 for new rows."""
    spread: float
    """Variance of a fixed logit over the rows, averaged over logits."""

    def part(self, chosen: Bool[np.ndarray, " rows"]) -> Judges:
        """Return some of the rows, with weights that sum to one."""
        names = ("features", "labels", "fold", "weight", "highest", "mass", "own")
        picked = {name: getattr(self, name)[chosen] for name in names}
        picked["weight"] = picked["weight"] / max(picked["weight"].sum(), 1e-300)
        return replace(self, **picked)


def discriminant_rows(
    data: NewClasses, max_old_loss: float, *, independent: bool = False
) -> Initialisation:
    """Return refined and balanced discriminants of the new classes.

    Without a row of an old class, nothing shows how rows compete with old rows: discriminants by
    the priors alone then get the mean norm of the old rows.

    Args:
        data: The data and the head.
        max_old_loss: Points of accuracy that old classes may lose, in [0, 100].
        independent: Whether the probabilities of the head are sigmoids, not a softmax.
    """
    problem = Problem.of(data, independent=independent)
    if not len(problem.old.labels):
        shrinkage, quadratic = problem.usual
        found = Discriminants.of(problem.moments(None), shrinkage).rows(quadratic)
        factor = norm_factor(found, data) if data.start else 1.0
        rows = Rows(factor * found.weight, factor * found.bias)
        return _started(rows, data, Optimum(0.0, shrinkage, quadratic, factor, 0.0))
    choice = problem.chosen()
    refined = dict(problem.refined(choice))
    rows, (old, new) = refined[ALL], problem.left_out(refined)
    tested, own = problem.new.fold >= 0, new[np.arange(len(new)), problem.new.labels]
    correct, wins = problem.old.own >= problem.old.highest, tested & (own >= new.max(axis=1))
    balance = Balance(
        room=np.sort((problem.old.highest - old.max(axis=1))[correct]),
        judged=len(old),
        needed=(problem.new.highest - own)[wins],
        untested=float((problem.counts == 1).mean()),
    )
    shift = balance.shift(max_old_loss)

    def left_out() -> LeftOut:
        judged = np.concatenate([np.ones(len(old), dtype=bool), tested])
        logits = torch.from_numpy(np.concatenate([old, new])[judged] + shift)
        return LeftOut(data, problem.numbers[judged], logits)

    moved = Rows(rows.weight, rows.bias + shift)
    started = _started(moved, data, choice._replace(shift=choice.shift + shift))
    return replace(started, left_out=left_out, balance=balance.moved(shift))


def _started(rows: Rows, data: NewClasses, choice: Optimum) -> Initialisation:
    return Initialisation(
        Rows(*(beside(data.head.weight, each) for each in (rows.weight, rows.bias))),
        factor=choice.scale,
        shift=choice.shift,
        shrinkage=choice.shrinkage,
        quadratic=choice.quadratic,
        library="numpy",
    )


@dataclass(frozen=True, eq=False)
class Problem:
    """The data of one start: statistics of all rows, and the rows that judge, old and new."""

    old: Judges
    new: Judges
    numbers: Int[np.ndarray, " judges"]
    """Number in the data of each judging row, old rows first."""
    shares: Float[np.ndarray, " new_judges"]
    """Weight of each new judging row within its group of repeated rows."""
    counts: Int[np.ndarray, " new"]
    """Images per new class; a group counts as one."""
    means: Float[np.ndarray, "new dim"]
    others: Float[np.ndarray, " dim"]
    """Sum of the means of old classes."""
    classes: int
    """Number of classes with rows."""
    scatter: Float[np.ndarray, "dim dim"]
    """Sum of outer products of deviations from class means."""
    freedom: float
    """Its degrees of freedom: rows less classes."""
    loss: Callable[..., tuple[float, np.ndarray]]
    """`_cross_entropy` or `_logistic`."""

    @classmethod
    def of(cls, data: NewClasses, *, independent: bool = False) -> Problem:
        """Sum all rows, and draw rows that judge, the same number per class."""
        statistics = data.statistics("sample")
        totals, means = statistics.totals, to_numpy(statistics.class_means)
        is_new, present = data.labels >= data.start, totals > 0
        sides = []
        for chosen, most in ((~is_new, OLD_ROWS), (is_new, NEW_ROWS)):
            rows = np.flatnonzero(chosen)
            kept = balanced_draw(data.labels[rows], most) if len(rows) else rows
            sides.append(rows[kept])
        old, new = sides
        groups = np.arange(len(data.labels)) if data.groups is None else data.groups
        return cls(
            old=_judges(data, old, np.arange(len(old)) % FOLDS),
            new=_judges(data, new, _folds(data.labels[new], groups[new])),
            numbers=np.concatenate(sides),
            shares=np.ones(len(new)) if data.shares is None else data.shares[new],
            counts=totals[data.start :],
            means=means[data.start :],
            others=means[: data.start].sum(0),
            classes=int(present.sum()),
            scatter=to_numpy(statistics.within_covariance) * totals.sum(),
            freedom=float(totals.sum() - present.sum()),
            loss=_logistic if independent else _cross_entropy,
        )

    def moments(self, left: int | None) -> Moments:
        """Return what remains if the new rows of a fold are left out; None: all rows."""
        means, scatter, freedom = self.means, self.scatter, self.freedom
        if left is not None:
            gone = self.new.fold == left
            rows, labels, shares = self.new.features[gone], self.new.labels[gone], self.shares[gone]
            removed = np.bincount(labels, shares, minlength=len(means))
            deviations = rows - means[labels]
            moved = np.zeros_like(means)
            np.add.at(moved, labels, shares[:, None] * deviations)
            stay = self.counts - removed
            moved /= -np.maximum(stay, 1)[:, None]  # new mean less former mean
            scatter = scatter - (shares[:, None] * deviations).T @ deviations
            scatter -= (stay[:, None] * moved).T @ moved
            means, freedom = means + moved, freedom - removed.sum()
        centre = (self.others + means.sum(0)) / self.classes
        # Shares of repeated rows and differences of sums leave rounding errors in place of zeros.
        within = scatter / freedom if freedom > 0.5 else np.zeros_like(scatter)
        return Moments(means, centre, within)

    @cached_property
    def remaining(self) -> list[tuple[int, Moments]]:
        """Folds in which new rows are left out, and what remains."""
        folds = np.unique(self.new.fold[self.new.fold >= 0]).tolist()
        return [(fold, self.moments(fold)) for fold in folds]

    @property
    def usual(self) -> tuple[float, float]:
        """The centre of the priors: g_0 and rho_0."""
        odds = 1 + 5 * self.means.shape[1] / max(self.freedom, 1.0)
        images = float(self.counts.mean())
        return odds / (1 + odds), images / (images + 2)

    def chosen(self) -> Optimum:
        """Return the least value of the objective, climbing down from g_0 in both directions."""
        usual = _logit(self.usual[0])
        costs = [_half_square(_logit(each) - usual, 1.5) for each in SHRINKAGES]
        first = int(np.argmin(costs))
        found = {first: self._best(SHRINKAGES[first], costs[first])}
        for step in (-1, 1):
            index = first + step
            while 0 <= index < len(costs):
                found[index] = self._best(SHRINKAGES[index], costs[index])
                if found[index] > found[index - step]:
                    break
                index += step
        return min(found.values())

    def _best(self, shrinkage: float, cost: float) -> Optimum:
        """Return the least value of the objective at one shrinkage, the cost of which is given."""
        full = Discriminants.of(self.moments(None), shrinkage)
        parts = [(fold, Discriminants.of(left, shrinkage)) for fold, left in self.remaining]
        owes = self._owes(full, shrinkage) if (self.new.fold < 0).any() else 0.0
        found = []
        for quadratic in QUADRATICS:
            prior = cost + _half_square(quadratic - self.usual[1], 0.35)
            old = _logits(full.rows(quadratic), self.old.features)
            new = self._judged(full, parts, quadratic, owes)
            value, scale, shift = self._calibrated(old, new)
            found.append(Optimum(value + prior, shrinkage, quadratic, scale, shift))
        return min(found)

    def _owes(self, full: Discriminants, shrinkage: float) -> float:
        """Return o: what the logit of the only image of a class owes to itself.

        A single old class has no spread between classes, so that it tells no share.
        """
        within, known = full.own_part(), len(np.unique(self.old.labels))
        unseen = within / (1 - (1 - shrinkage) * within / max(self.freedom, 0.5))
        if known < 2 or not within:
            return unseen
        sides = ((side.weight, full.whitened(side.features)) for side in (self.old, self.new))
        old, new = (float((weight @ x**2 - (weight @ x) ** 2).sum()) for weight, x in sides)
        between = max(old - within, 0.0) * known / (known - 1)
        return unseen * max(1.0, 1 / len(self.counts) + new / (unseen + between))

    def _judged(
        self,
        full: Discriminants,
        parts: list[tuple[int, Discriminants]],
        quadratic: float,
        owes: float,
    ) -> Float[np.ndarray, "rows new"]:
        """Return the logits of new rows by rows that were computed without them.

        `owes` is that of `_owes`, by which the logit of the only image of a class is lowered.
        """
        new = self.new
        found = _logits(full.rows(quadratic), new.features)
        alone = np.flatnonzero(new.fold < 0)
        found[alone, new.labels[alone]] -= owes
        for fold, part in parts:
            out = new.fold == fold
            found[out] = _logits(part.rows(quadratic), new.features[out])
        return found

    def _calibrated(
        self, old: Float[np.ndarray, "old new"], new: Float[np.ndarray, "rows new"]
    ) -> tuple[float, float, float]:
        """Return the least value over scale and shift, with both."""
        spread = float(old.var(0).mean())
        usual = np.log(np.sqrt(self.old.spread / spread)) if self.old.spread * spread > 0 else 0.0
        judged = float(self.shares.sum())

        def objective(point: np.ndarray) -> tuple[float, np.ndarray]:
            scale, total, slope = np.exp(point[0]), 0.0, np.zeros(2)
            for side, logits, target in ((self.old, old, None), (self.new, new, self.new.labels)):
                value, gradient = self.loss(scale * logits + point[1], side, target)
                total += judged * value
                slope += judged * np.array([scale * (gradient * logits).sum(), gradient.sum()])
            slope[0] += (point[0] - usual) / 0.5**2
            return total + _half_square(point[0] - usual, 0.5), slope

        end = minimize(objective, np.array([usual, 0.0]), jac=True, method="BFGS")
        return float(end.fun), float(np.exp(end.x[0])), float(end.x[1])

    def refined(self, choice: Optimum) -> Iterator[tuple[int, Rows]]:
        """Yield the maximum a posteriori of all rows, and without the rows of each fold.

        The shape of the prior is the same for all folds, its mean is not.
        """
        whole = Discriminants.of(self.moments(None), choice.shrinkage)
        inputs = [whole.whitened(side.features) for side in (self.old, self.new)]
        without = dict(self.remaining)
        for left in (ALL, *range(FOLDS)):
            part = Discriminants.of(without[left], choice.shrinkage) if left in without else whole
            raw = part.rows(choice.quadratic)
            begin = choice.scale * raw.weight @ whole.factor
            bias = choice.scale * (raw.bias + raw.weight @ whole.moments.centre) + choice.shift
            start = np.concatenate([begin, bias[:, None]], axis=1)
            found = self._refined(start, inputs, left)
            weight = solve_triangular(whole.factor, found[:, :-1].T, lower=True, trans="T").T
            yield left, Rows(weight, found[:, -1] - weight @ whole.moments.centre)

    def _refined(
        self, start: Float[np.ndarray, "new columns"], inputs: list[np.ndarray], left: int
    ) -> Float[np.ndarray, "new columns"]:
        sides = []
        for side, whitened in zip((self.old, self.new), inputs, strict=True):
            stay = side.fold != left
            ones = np.ones((int(stay.sum()), 1))
            target = None if side is self.old else side.labels[stay]
            sides.append((side.part(stay), np.concatenate([whitened[stay], ones], 1), target))
        strength = KEPT / max(1.0, float(self.counts.sum()))

        def objective(point: np.ndarray) -> tuple[float, np.ndarray]:
            rows = point.reshape(start.shape)
            total, slope = strength / 2 * float(((rows - start) ** 2).sum()), rows - start
            slope = strength * slope
            for side, inputs, target in sides:
                value, gradient = self.loss(inputs @ rows.T, side, target)
                total, slope = total + value, slope + gradient.T @ inputs
            return total, slope.ravel()

        end = minimize(
            objective, start.ravel(), jac=True, method="L-BFGS-B", options={"maxiter": MOST_STEPS}
        )
        return np.asarray(end.x).reshape(start.shape)

    def left_out(self, refined: Mapping[int, Rows]) -> list[Float[np.ndarray, "rows new"]]:
        """Return the logits of old and of new rows by rows that were refined without them.

        The only image of a class is judged by the rows themselves; `Balance` does not use it.
        """
        logits = []
        for side in (self.old, self.new):
            found = _logits(refined[ALL], side.features)
            for fold in range(FOLDS):
                out = side.fold == fold
                found[out] = _logits(refined[fold], side.features[out])
            logits.append(found)
        return logits


def _judges(data: NewClasses, rows: Int[np.ndarray, " rows"], fold: np.ndarray) -> Judges:
    features = to_numpy(take(data.features, rows)).astype(np.float64)
    labels, head = data.labels[rows], data.head.on_host()
    fixed = np.r_[0 : data.start, data.stop : len(head.bias)]
    logits = features @ head.weight[fixed].T + head.bias[fixed]
    is_old = labels < data.start
    own = logits[np.arange(len(rows)), labels] if is_old.all() else np.zeros(len(rows))
    weight = 1 / np.bincount(labels, minlength=1)[labels]
    if data.shares is not None:
        weight = weight * data.shares[rows]
    return Judges(
        features=features,
        labels=labels if is_old.all() else labels - data.start,
        fold=fold,
        weight=weight / max(weight.sum(), 1e-300),
        highest=logits.max(1) if logits.shape[1] else np.full(len(rows), -np.inf),
        mass=logsumexp(logits, axis=1) if logits.shape[1] else np.full(len(rows), -np.inf),
        own=own,
        spread=float(logits.var(0).mean()) if logits.size else 0.0,
    )


def _folds(labels: Int[np.ndarray, " rows"], groups: Int[np.ndarray, " rows"]) -> np.ndarray:
    """Deal the groups of each class out to the folds; the only group of a class gets -1."""
    fold = np.full(len(labels), -1)
    for each in np.unique(labels):
        rows = np.flatnonzero(labels == each)
        kinds, places = np.unique(groups[rows], return_inverse=True)
        if len(kinds) > 1:
            fold[rows] = places.reshape(-1) % FOLDS
    return fold


def _logits(rows: Rows, features: Float[np.ndarray, "rows dim"]) -> np.ndarray:
    logits: np.ndarray = features @ rows.weight.T + rows.bias
    return logits


def _cross_entropy(
    new: Float[np.ndarray, "rows new"], side: Judges, target: Int[np.ndarray, " rows"] | None
) -> tuple[float, Float[np.ndarray, "rows new"]]:
    """Return the weighted loss of rows with these new logits, and its gradient in them.

    `target` is the new class of each row; None: the rows are old.
    """
    highest = np.maximum(new.max(axis=1), side.mass)
    parts = np.exp(new - highest[:, None])
    total = parts.sum(axis=1) + np.exp(side.mass - highest)
    gradient, own = side.weight[:, None] * parts / total[:, None], side.own
    if target is not None:
        here = np.arange(len(new))
        gradient[here, target] -= side.weight
        own = new[here, target]
    return float(side.weight @ (highest + np.log(total) - own)), gradient


def _logistic(
    new: Float[np.ndarray, "rows new"], side: Judges, target: Int[np.ndarray, " rows"] | None
) -> tuple[float, Float[np.ndarray, "rows new"]]:
    """Return the loss of each new class by itself, as `_cross_entropy` does for a softmax."""
    gradient = side.weight[:, None] * expit(new)
    value = np.logaddexp(0, new).sum(axis=1)
    if target is not None:
        here = np.arange(len(new))
        gradient[here, target] -= side.weight
        value -= new[here, target]
    return float(side.weight @ value), gradient


def _half_square(distance: float, deviation: float) -> float:
    return float((distance / deviation) ** 2 / 2)


def _logit(share: float) -> float:
    return float(np.log(share / (1 - share)))

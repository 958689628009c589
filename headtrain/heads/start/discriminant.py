"""New rows as shrunken discriminants, refined by the loss and balanced against the old rows.

With mu_c the mean of a new class, m the mean of the means of all classes, S the covariance within
classes, pooled over old and new classes, and d its dimension,

    A = (1 - g) S + g tr(S) / d I,    u_c = A^-1 (mu_c - m),
    b_c = -u_c.m - rho / 2 (mu_c - m).u_c.

g = 1 gives class means, g = 0 and rho = 1 linear discriminants (J. H. Friedman, "Regularized
discriminant analysis", JASA 84, 1989). The quadratic term of the bias contains the noise of the
mean, which is large if there are few images, so that rho is free.

All new rows share a multiple of a direction that separates all new from all old images. With m_0
and m_1 the class-balanced means of old and of new images, and B the mean of their covariances,

    v = (0.7 B + 0.3 tr(B) / d I)^-1 (m_1 - m_0),    c = v.(m_0 + m_1) / 2.

25 classes tell such a direction much better than each class its own row, and without it the largest
of 25 logits is high by chance.

One objective chooses g, rho, the scale s, the shift t and the multiple r >= 0 of the logits
s (u_c.h + b_c + r k (v.h - c)) + t, where k makes v.h vary over old images as u_c.h does:

    sum_i w_i CE_i  +  (logit g - logit g_0)^2 / (2 1.5^2)  +  (rho - rho_0)^2 / (2 0.35^2)
                    +  log(s / s_0)^2 / (2 0.5^2)  +  r^2 / (2 0.5^2)

in nats. The mean without an image lies away from it, so that r < 0 would be an artefact. Each new
class with several independent images is judged by images that its row was computed without (five
folds). The only image of a class is judged by the expected logit of another image, u_c.(h - m) - o:
with h = mu + e and u_c = A^-1 (mu + e - m), it owes e.A^-1 e to itself. Of an image that is part of
S, the mean is t = tr(A^-1 S). An image that is not owes more,

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

From there, the rows are refined: with x = L^-1 (h - m), rows w minimise the same cross
entropy plus `KEPT` / 2 |w - w_0|^2 per new image. This is the maximum a posteriori of a logistic
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
from scipy.special import expit, logit, logsumexp

from clinit.headtrain.heads.array import Cholesky, beside, take, to_numpy
from clinit.headtrain.heads.groups import balanced_draw
from clinit.headtrain.heads.linear import Rows
from clinit.headtrain.heads.start.calibrate import norm_factor
from clinit.headtrain.heads.start.new_rows import NewClasses
from clinit.headtrain.heads.start.scale import Balance, Initialisation, LeftOut

SHRINKAGES = (0.95, 0.9, 0.7, 0.5, 0.3, 0.1, 0.03)
QUADRATICS = (0.0, 0.25, 0.5, 0.75, 1.0)
FOLDS = 5
APART = 0.3
"""Shrinkage of the covariance for v; 0.1 to 0.5 differ by less than a point."""
KEPT = 10.0
"""Weight of the prior in the refinement, in images; 1 to 60 differ by less than a point."""
ALL = -2
"""In place of a fold: no row is left out."""
MOST_STEPS, EXACT = 60, 1e-9
OLD_ROWS, NEW_ROWS = 1024, 2048
"""Rows that judge; at least one of each class."""


class Moments(NamedTuple):
    """What rows are computed from, besides S of all images, if some images are left out."""

    means: Float[np.ndarray, "new dim"]
    centre: Float[np.ndarray, " dim"]
    """Mean of the means of all classes."""
    freedom: float
    """Degrees of freedom of S."""
    lost: Float[np.ndarray, "lost dim"]
    """Rows whose outer products the scatter loses."""

    @property
    def offsets(self) -> Float[np.ndarray, "new dim"]:
        """mu_c - m."""
        return np.asarray(self.means - self.centre)

    @property
    def rounding(self) -> float:
        """Variances below are rounding errors in place of zeros."""
        return float(1e-12 * (self.means**2).mean())

    def rows(self, weight: Float[np.ndarray, "new dim"], quadratic: float) -> Rows:
        """Return u_c and b_c."""
        squares = (self.offsets * weight).sum(1)
        return Rows(weight, -weight @ self.centre - quadratic / 2 * squares)


@dataclass(frozen=True, slots=True, eq=False)
class Discriminants:
    """A factorisation of A of all images, for one shrinkage."""

    moments: Moments
    within: Float[np.ndarray, "dim dim"]
    """S."""
    shrinkage: float
    factor: Float[np.ndarray, "dim dim"]
    """L, lower triangular."""

    @classmethod
    def of(
        cls, moments: Moments, within: Float[np.ndarray, "dim dim"], shrinkage: float
    ) -> Discriminants:
        """Factorise A; without any variance within classes, it is the identity."""
        system, level = (1 - shrinkage) * within, np.trace(within) / len(within)
        ridge = shrinkage * level if level > moments.rounding else 1.0
        system[np.diag_indices_from(system)] += ridge
        factor = cholesky(system, lower=True, overwrite_a=True, check_finite=False)
        return cls(moments, within, shrinkage, factor)

    def weight(self, fewer: Moments) -> Float[np.ndarray, "new dim"]:
        """Return u_c without the images that `fewer` lacks.

        With f and f' the degrees of freedom, X the lost rows and k = (1 - g) / f,

            A' = f / f' (M - r I),    M = A - k X'X,    r = g tr(X'X) / (f d),
            (M - r I)^-1 = M^-1 + r M^-2 + r^2 M^-3 + ...,
            M^-1 = L'^-1 (I + H (I - H'H)^-1 H') L^-1,    H = L^-1 X' sqrt(k).

        If half of the scatter is lost, A' is factorised; if all of it, A' is the identity.
        """
        lost, freedom, dim = fewer.lost, max(0.5, self.moments.freedom), len(self.within)
        gone, size = float(np.square(lost).sum()) / freedom, float(np.trace(self.within))
        least = max(1e-10 * size, dim * self.moments.rounding)
        if fewer.freedom < 0.5 or size - gone <= least:
            return fewer.offsets
        if gone > size / 2:
            within = (freedom * self.within - lost.T @ lost) / fewer.freedom
            alone = fewer._replace(lost=lost[:0])
            return Discriminants.of(alone, within, self.shrinkage).weight(alone)
        half = self._half(np.sqrt((1 - self.shrinkage) / freedom) * lost)
        inner = np.eye(len(lost)) - half.T @ half

        def solved(rows: Float[np.ndarray, "new dim"]) -> Float[np.ndarray, "new dim"]:
            right = self._half(rows)
            right += half @ np.linalg.solve(inner, half.T @ right)
            return np.asarray(solve_triangular(self.factor, right, lower=True, trans="T").T)

        term = total = solved(fewer.offsets)
        while np.abs(term).max(initial=0.0) > EXACT * np.abs(total).max(initial=0.0):
            term = self.shrinkage * gone / dim * solved(term)
            total = total + term
        return fewer.freedom / freedom * total

    def rows(self, fewer: Moments, quadratic: float) -> Rows:
        """Return u_c and b_c without the images that `fewer` lacks."""
        return fewer.rows(self.weight(fewer), quadratic)

    def own_part(self) -> float:
        """Return tr(A^-1 S): what the logit of an image that is part of S owes to itself."""
        return float(np.trace(cho_solve((self.factor, True), self.within)))

    def whitened(self, features: Float[np.ndarray, "rows dim"]) -> Float[np.ndarray, "rows dim"]:
        """Return L^-1 (h - m)."""
        return self._half(features - self.moments.centre).T

    def _half(self, rows: Float[np.ndarray, "rows dim"]) -> Float[np.ndarray, "dim rows"]:
        found: np.ndarray = solve_triangular(self.factor, rows.T, lower=True, check_finite=False)
        return found


class Optimum(NamedTuple):
    """The least value of the objective, and its place."""

    value: float
    shrinkage: float
    quadratic: float
    scale: float
    shift: float
    apart: float
    """r: multiple of v, before the scale."""


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

    def mean_and_root(self) -> tuple[np.ndarray, Float[np.ndarray, "rows dim"]]:
        """Return the weighted mean of the rows, and X with X'X their covariance."""
        mean = self.weight @ self.features
        return mean, np.sqrt(self.weight)[:, None] * (self.features - mean)


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
        found = problem.whole(shrinkage).rows(problem.remaining[ALL], quadratic)
        factor = norm_factor(found, data) if data.start else 1.0
        rows = Rows(factor * found.weight, factor * found.bias)
        return _started(rows, data, Optimum(0.0, shrinkage, quadratic, factor, 0.0, 0.0))
    choice = problem.chosen()
    refined = dict(problem.refined(choice))
    rows, sides = refined[ALL], (problem.old, problem.new)
    # The only image of a class is judged by the rows themselves; `Balance` does not use it.
    old, new = (_left_out(refined, side, side.fold) for side in sides)
    tested = problem.new.fold >= 0
    judged = np.append(np.ones(len(old), dtype=bool), tested)
    numbers, logits = problem.numbers[judged], np.concatenate([old, new])[judged]
    balance = Balance.of(
        np.append(problem.old.highest, problem.new.highest[tested]),
        np.append(problem.old.own >= problem.old.highest, tested[tested]),
        np.maximum(data.labels[numbers] - data.start, -1),
        logits,
    )
    shift = balance.shift(max_old_loss)

    def left_out() -> LeftOut:
        return LeftOut(data, numbers, torch.from_numpy(logits + shift))

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

    def moments(self, left: int) -> Moments:
        """Return what remains if the new rows of a fold are left out."""
        gone = self.new.fold == left
        rows, labels, shares = self.new.features[gone], self.new.labels[gone], self.shares[gone]
        removed = np.bincount(labels, shares, minlength=len(self.means))
        deviations = rows - self.means[labels]
        moved = np.zeros_like(self.means)
        np.add.at(moved, labels, shares[:, None] * deviations)
        stay = self.counts - removed
        moved /= -np.maximum(stay, 1)[:, None]  # new mean less former mean
        parts = ((shares, deviations), (stay[removed > 0], moved[removed > 0]))
        lost = np.concatenate([np.sqrt(weight)[:, None] * rows for weight, rows in parts])
        means, freedom = self.means + moved, float(self.freedom - removed.sum())
        centre = (self.others + means.sum(0)) / self.classes
        return Moments(means, centre, freedom, lost)

    @property
    def within(self) -> Float[np.ndarray, "dim dim"]:
        """S, or zeros in place of rounding errors."""
        return self.scatter / self.freedom if self.freedom > 0.5 else 0.0 * self.scatter

    @cached_property
    def remaining(self) -> dict[int, Moments]:
        """What remains without the new rows of each fold that has some, and of all rows."""
        folds = np.unique(self.new.fold[self.new.fold >= 0]).tolist()
        return {fold: self.moments(fold) for fold in (ALL, *folds)}

    def whole(self, shrinkage: float) -> Discriminants:
        """Factorise A of all images."""
        return Discriminants.of(self.remaining[ALL], self.within, shrinkage)

    @property
    def usual(self) -> tuple[float, float]:
        """The centre of the priors: g_0 and rho_0."""
        odds = 1 + 5 * self.means.shape[1] / max(self.freedom, 1.0)
        images = float(self.counts.mean())
        return odds / (1 + odds), images / (images + 2)

    def chosen(self) -> Optimum:
        """Return the least value of the objective, climbing down from g_0 in both directions."""
        usual = logit(self.usual[0])
        costs = [((logit(each) - usual) / 1.5) ** 2 / 2 for each in SHRINKAGES]
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
        whole = self.whole(shrinkage)
        weights = {fold: whole.weight(rest) for fold, rest in self.remaining.items()}
        alone = np.flatnonzero(self.new.fold < 0)
        owes, found = self._owes(whole, shrinkage) if len(alone) else 0.0, []
        for quadratic in QUADRATICS:
            prior = cost + ((quadratic - self.usual[1]) / 0.35) ** 2 / 2
            rows = {f: m.rows(weights[f], quadratic) for f, m in self.remaining.items()}
            old = _logits(rows[ALL], self.old.features)
            new = _left_out(rows, self.new, self.new.fold)
            new[alone, self.new.labels[alone]] -= owes
            value, *rest = self._calibrated(old, new)
            found.append(Optimum(value + prior, shrinkage, quadratic, *rest))
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

    @cached_property
    def dealt(self) -> list[tuple[Judges, Int[np.ndarray, " rows"]]]:
        """Both sides with folds for v: the only images of classes are dealt out too."""
        alone = np.where(self.new.fold < 0, self.new.labels % FOLDS, self.new.fold)
        return [(self.old, self.old.fold), (self.new, alone)]

    @cached_property
    def apart(self) -> dict[int, Rows]:
        """The row v of all images, and without the images of each fold."""
        found = {}
        for left in (ALL, *range(FOLDS)):
            sides = [side.part(fold != left) for side, fold in self.dealt]
            (old, within), (new, other) = (side.mean_and_root() for side in sides)
            root = np.concatenate([within, other]) * np.sqrt(0.5)
            between = Moments(new[None], old, 0.0, root[:0])
            found[left] = between.rows(_apart(root, (new - old)[None]), 1.0)
        return found

    def _calibrated(
        self, old: Float[np.ndarray, "old new"], new: Float[np.ndarray, "rows new"]
    ) -> tuple[float, float, float, float]:
        """Return the least value over scale, shift and the multiple of v, with these."""
        v_old, v_new = (_left_out(self.apart, *each) for each in self.dealt)
        spread, own = float(old.var(0).mean()), self.new.labels
        usual = np.log(np.sqrt(self.old.spread / spread)) if self.old.spread * spread > 0 else 0.0
        judged, size = float(self.shares.sum()), np.sqrt(spread / (v_old.var() or np.inf))
        sides = ((self.old, old, size * v_old, None), (self.new, new, size * v_new, own))

        def objective(point: np.ndarray) -> tuple[float, np.ndarray]:
            scale, total, slope = np.exp(point[0]), 0.0, np.zeros(3)
            for side, raw, apart, target in sides:
                logits = raw + point[2] * apart
                value, gradient = self.loss(scale * logits + point[1], side, target)
                total += judged * value
                moved = scale * (gradient * logits).sum(), scale * (gradient * apart).sum()
                slope += judged * np.array([moved[0], gradient.sum(), moved[1]])
            distance = np.array([point[0] - usual, 0.0, point[2]]) / 0.5
            return total + float(distance @ distance) / 2, slope + distance / 0.5

        # Without the only fold of a side there is no v.
        most = None if all(len(np.unique(fold)) > 1 for _side, fold in self.dealt) else 0.0
        begin, bounds = np.array([usual, 0.0, 0.0]), [(None, None), (None, None), (0.0, most)]
        end = minimize(objective, begin, jac=True, method="L-BFGS-B", bounds=bounds)
        scale, shift, apart = end.x
        return float(end.fun), float(np.exp(scale)), float(shift), float(apart * size)

    def refined(self, choice: Optimum) -> Iterator[tuple[int, Rows]]:
        """Yield the maximum a posteriori of all rows, and without the rows of each fold.

        The shape of the prior is the same for all folds, its mean is not.
        """
        whole = self.whole(choice.shrinkage)
        inputs = [whole.whitened(side.features) for side in (self.old, self.new)]
        for left in (ALL, *range(FOLDS)):
            moments, apart = self.remaining.get(left, whole.moments), self.apart[left]
            raw = whole.rows(moments, choice.quadratic)
            weight = choice.scale * (raw.weight + choice.apart * apart.weight)
            bias = choice.scale * (raw.bias + choice.apart * apart.bias) + choice.shift
            bias += weight @ whole.moments.centre
            start = np.concatenate([weight @ whole.factor, bias[:, None]], axis=1)
            found = self._refined(start, inputs, left)
            weight = solve_triangular(whole.factor, found[:, :-1].T, lower=True, trans="T").T
            yield left, Rows(weight, found[:, -1] - weight @ whole.moments.centre)

    def _refined(
        self, start: Float[np.ndarray, "new columns"], inputs: list[np.ndarray], left: int
    ) -> Float[np.ndarray, "new columns"]:
        sides, dim = [], start.shape[1] - 1
        for side, whitened in zip((self.old, self.new), inputs, strict=True):
            stay = side.fold != left
            target = None if side is self.old else side.labels[stay]
            sides.append((side.part(stay), np.insert(whitened[stay], dim, 1.0, axis=1), target))
        strength = KEPT / max(1.0, float(self.counts.sum()))

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


def _apart(root: Float[np.ndarray, "rows dim"], gap: Float[np.ndarray, "1 dim"]) -> np.ndarray:
    """Return v for a covariance B = root' root and the gap m_1 - m_0; without variance, the gap.

    If B has fewer rows than columns, (X'X + r I)^-1 = (I - X'(XX' + r I)^-1 X) / r.
    """
    level = float(np.square(root).sum()) / root.shape[1]
    if not level:
        return gap
    rows, ridge = np.sqrt(1 - APART) * root, APART * level
    if len(rows) >= rows.shape[1]:
        return np.asarray(Cholesky.ridged(rows.T @ rows, ridge).solve(gap.T).T)
    inner = Cholesky.ridged(rows @ rows.T, ridge).solve(rows @ gap.T)
    return np.asarray((gap - inner.T @ rows) / ridge)


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


def _left_out(
    rows: Mapping[int, Rows], side: Judges, fold: Int[np.ndarray, " rows"]
) -> Float[np.ndarray, "rows new"]:
    """Return the logits of each row by rows computed without its fold."""
    found = _logits(rows[ALL], side.features)
    for each, computed in rows.items():
        out = fold == each
        found[out] = _logits(computed, side.features[out])
    return found


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

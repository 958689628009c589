"""Discriminants of the new classes: chosen, refined by the loss and balanced against old rows.

Discriminants u_c, b_c with shrinkage g and quadratic term rho, and the direction v with its offset
c are those of `clinit.headtrain.heads.start.discriminant`. One objective chooses g, rho, the scale
s, the shift t and the multiple r >= 0 of the logits s (u_c.h + b_c + r k (v.h - c)) + t, where k
makes v.h vary over old images as u_c.h does:

    sum_i w_i CE_i  +  (logit g - logit g_0)^2 / (2 1.5^2)  +  (rho - rho_0)^2 / (2 0.35^2)
                    +  log(s / s_0)^2 / (2 0.5^2)  +  (r - r_0)^2 / (2 0.5^2)

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

So single images choose rho, s, t and r. For g, o depends too much on S, the spread of other
classes: the comparison of one g with another leaves the losses of single images out, but not those
of old images next to their rows.

New classes weigh as many images as were judged, and all old images together the same. So one image
more moves the sum by the share of one image, and with few images the priors decide:
g_0 / (1 - g_0) = 1 + 5 d / f, rho_0 = n / (n + 2) with n images per new class, r_0 = 1 - 1 / C (the
only new class has v in its own row), and s_0, with which the new logits of old images vary as much
as their old logits.

From there, the rows are refined (`clinit.headtrain.heads.start.refinement`).

CE is the loss of `clinit.headtrain.heads.start.judges`, the logistic one for sigmoids.

Finally the shift is set by a price: as many points of accuracy as old classes may lose, on old
images that the rows were refined without. It is not raised further than left-out new images gain.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from operator import itemgetter
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int
from scipy.optimize import minimize
from scipy.special import logit

from clinit.headtrain.heads.array import beside, to_numpy
from clinit.headtrain.heads.groups import balanced_draw
from clinit.headtrain.heads.linear import Rows
from clinit.headtrain.heads.start import judges
from clinit.headtrain.heads.start.calibrate import norm_factor
from clinit.headtrain.heads.start.discriminant import Discriminants, Moments, direction_apart
from clinit.headtrain.heads.start.new_rows import NewClasses
from clinit.headtrain.heads.start.refinement import MOST_STEPS, Refinement, climbed_down
from clinit.headtrain.heads.start.scale import Balance, Initialisation, LeftOut

SHRINKAGES = (0.95, 0.9, 0.7, 0.5, 0.3, 0.1, 0.03)
QUADRATICS = (0.0, 0.25, 0.5, 0.75, 1.0)


class Optimum(NamedTuple):
    """The least value of the objective, and its place."""

    value: float
    shrinkage: float
    quadratic: float
    scale: float
    shift: float
    apart: float
    """r: multiple of v, before the scale."""


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
        shrinkage, quadratic, _apart = problem.usual
        found = problem.whole(shrinkage).rows(problem.remaining[judges.ALL], quadratic)
        factor = norm_factor(found, data) if data.start else 1.0
        rows = Rows(factor * found.weight, factor * found.bias)
        return _started(rows, data, Optimum(0.0, shrinkage, quadratic, factor, 0.0, 0.0))
    choice = problem.chosen()
    refined = problem.refinement(choice).best()
    rows, sides = refined[judges.ALL], (problem.old, problem.new)
    # The only image of a class is judged by the rows themselves; `Balance` does not use it.
    old, new = (judges.left_out_logits(refined, side, side.fold) for side in sides)
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

    old: judges.Judges
    new: judges.Judges
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
    """`cross_entropy` or `logistic_loss`."""

    @classmethod
    def of(cls, data: NewClasses, *, independent: bool = False) -> Problem:
        """Sum all rows, and draw rows that judge, the same number per class."""
        statistics = data.statistics("sample")
        totals, means = statistics.totals, to_numpy(statistics.class_means)
        is_new, present = data.labels >= data.start, totals > 0
        sides = []
        for chosen, most in ((~is_new, judges.OLD_ROWS), (is_new, judges.NEW_ROWS)):
            rows = np.flatnonzero(chosen)
            kept = balanced_draw(data.labels[rows], most) if len(rows) else rows
            sides.append(rows[kept])
        old, new = sides
        groups = np.arange(len(data.labels)) if data.groups is None else data.groups
        return cls(
            old=judges.Judges.of(data, old, np.arange(len(old)) % judges.FOLDS),
            new=judges.Judges.of(data, new, judges.folds_of(data.labels[new], groups[new])),
            numbers=np.concatenate(sides),
            shares=np.ones(len(new)) if data.shares is None else data.shares[new],
            counts=totals[data.start :],
            means=means[data.start :],
            others=means[: data.start].sum(0),
            classes=int(present.sum()),
            scatter=to_numpy(statistics.within_covariance) * totals.sum(),
            freedom=float(totals.sum() - present.sum()),
            loss=judges.logistic_loss if independent else judges.cross_entropy,
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
        return {fold: self.moments(fold) for fold in (judges.ALL, *folds)}

    def whole(self, shrinkage: float) -> Discriminants:
        """Factorise A of all images."""
        return Discriminants.of(self.remaining[judges.ALL], self.within, shrinkage)

    @property
    def usual(self) -> tuple[float, float, float]:
        """The centre of the priors: g_0, rho_0 and r_0."""
        odds = 1 + 5 * self.means.shape[1] / max(self.freedom, 1.0)
        images = float(self.counts.mean())
        return odds / (1 + odds), images / (images + 2), 1 - 1 / len(self.counts)

    def chosen(self) -> Optimum:
        """Return the least value of the objective, climbing down from g_0 in both directions."""
        usual = logit(self.usual[0])
        costs = [((logit(each) - usual) / 1.5) ** 2 / 2 for each in SHRINKAGES]
        return climbed_down(costs, lambda index: self._best(SHRINKAGES[index], costs[index]))

    def _best(self, shrinkage: float, cost: float) -> Optimum:
        """Return the least value of the objective at one shrinkage, the cost of which is given."""
        whole = self.whole(shrinkage)
        weights = {fold: whole.weight(rest) for fold, rest in self.remaining.items()}
        alone = np.flatnonzero(self.new.fold < 0)
        owes, found = self._owes(whole, shrinkage) if len(alone) else 0.0, []
        for quadratic in QUADRATICS:
            prior = cost + ((quadratic - self.usual[1]) / 0.35) ** 2 / 2
            rows = {f: m.rows(weights[f], quadratic) for f, m in self.remaining.items()}
            old = judges.logits_by(rows[judges.ALL], self.old.features)
            new = judges.left_out_logits(rows, self.new, self.new.fold)
            new[alone, self.new.labels[alone]] -= owes
            value, *rest = self._calibrated(old, new)
            found.append((Optimum(value + prior, shrinkage, quadratic, *rest), new))
        best, new = min(found, key=itemgetter(0))
        return best._replace(value=best.value - self._of_singles(best, new))

    def _of_singles(self, choice: Optimum, new: Float[np.ndarray, "rows new"]) -> float:
        """Return the part of the objective that is the loss of single images."""
        alone = replace(self.new, weight=self.new.weight * (self.new.fold < 0))
        logits = new + choice.apart * judges.left_out_logits(self.apart, *self.dealt[1])
        value, _ = self.loss(choice.scale * logits + choice.shift, alone, self.new.labels)
        return float(self.shares.sum()) * value

    def _owes(self, full: Discriminants, shrinkage: float) -> float:
        """Return o: what the logit of the only image of a class owes to itself.

        A single old class has no spread between classes, from which a share would follow.
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
    def dealt(self) -> list[tuple[judges.Judges, Int[np.ndarray, " rows"]]]:
        """Both sides with folds for v: the only images of classes are dealt out too."""
        alone = np.where(self.new.fold < 0, self.new.labels % judges.FOLDS, self.new.fold)
        return [(self.old, self.old.fold), (self.new, alone)]

    @cached_property
    def apart(self) -> dict[int, Rows]:
        """The row v of all images, and without the images of each fold."""
        found = {}
        for left in (judges.ALL, *range(judges.FOLDS)):
            sides = [side.part(fold != left) for side, fold in self.dealt]
            (old, within), (new, other) = (side.mean_and_root() for side in sides)
            root = np.concatenate([within, other]) * np.sqrt(0.5)
            between = Moments(new[None], old, 0.0, root[:0])
            found[left] = between.rows(direction_apart(root, (new - old)[None]), 1.0)
        return found

    def _calibrated(
        self, old: Float[np.ndarray, "old new"], new: Float[np.ndarray, "rows new"]
    ) -> tuple[float, float, float, float]:
        """Return the least value over scale, shift and the multiple of v, with these."""
        v_old, v_new = (judges.left_out_logits(self.apart, *each) for each in self.dealt)
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
            distance = (point - centre) * [2.0, 0.0, 2.0]
            return total + float(distance @ distance) / 2, slope + 2.0 * distance

        # Without the only fold of a side there is no v.
        known = all(len(np.unique(fold)) > 1 for _side, fold in self.dealt)
        centre = np.array([usual, 0.0, self.usual[2] if known else 0.0])
        bounds = [(usual - 5, usual + 5), (None, None), (0.0, None if known else 0.0)]
        end = minimize(
            objective, centre, jac=True, method="L-BFGS-B", bounds=bounds,
            options={"maxiter": MOST_STEPS},
        )  # fmt: skip
        scale, shift, apart = end.x
        return float(end.fun), float(np.exp(scale)), float(shift), float(apart * size)

    def refinement(self, choice: Optimum) -> Refinement:
        """Return what refines the chosen rows, of all images and without those of each fold."""
        whole, begin = self.whole(choice.shrinkage), {}
        for left in (judges.ALL, *range(judges.FOLDS)):
            apart, moments = self.apart[left], self.remaining.get(left, whole.moments)
            raw = whole.rows(moments, choice.quadratic)
            weight = choice.scale * (raw.weight + choice.apart * apart.weight)
            bias = choice.scale * (raw.bias + choice.apart * apart.bias) + choice.shift
            begin[left] = Rows(weight, bias)
        judged = float(self.shares[self.new.fold >= 0].sum())
        images = float(self.counts.sum())
        return Refinement(self.old, self.new, images, judged, self.loss, whole, begin)

"""The scale of new rows.

    rows = factor * raw rows + (0, shift)

`calibrate` finds the factor and the shift of the least loss. If every new class has a single image,
nothing can be left out to calibrate on, and the factor is learnt from old classes. If that is
impossible too, or if the calibrated factor is not positive (left-out images are unlike the rest of
their class), new rows get the mean norm of old rows. Least-square rows of single images that will
be trained get twice this norm.

Factor learnt from old classes: in an *episode*, some old classes *play* new classes. They lose
their row of the head and all images but one, and new rows are computed from these single images.
The *judges* are the remaining images of the playing classes and images of classes that keep their
rows. With E episodes e and judges i,

    F(s) = 1 / E sum_e sum_i w_ei CE(s g_ei, old logits of i)

is minimised in the factor s. Together, the playing classes weigh n / (n + C), with n new classes
and C old classes that have rows; or, if `new_share` is set, the part of `new_share` that belongs to
the new classes. All playing classes weigh the same, and so do all other classes. New rows then get
the norm that rows have in the episodes. The loss is always cross entropy, so that tolerances in
nats keep their meaning.

Rows that will be trained should be longer. AdamW moves each weight by about its learning rate per
update, however little there is to learn from single images: the distance between an old and a new
row of d weights may grow by 2 lr updates sqrt(d), in directions that mean little for other images.
New rows are lengthened by this distance, or by less if the loss in the episodes grows too much.

The only image of a class from an earlier task is no judge: the row of the class depends on it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from clinit.errors import StatisticsError
from clinit.headtrain.heads.array import as_tensor, beside, namespace, take, to_numpy
from clinit.headtrain.heads.linear import Rows
from clinit.headtrain.heads.losses import LOSSES, FixedPart
from clinit.headtrain.heads.seeds import Draw, generator
from clinit.headtrain.heads.start.calibrate import (
    Calibration,
    Objective,
    calibrate,
    norm_factor,
    norm_ratio,
    row_factors,
)
from clinit.headtrain.heads.start.calibration_set import CalibrationSet, balanced_draw
from clinit.headtrain.heads.start.left_out import in_sample, leave_one_out
from clinit.headtrain.heads.start.new_rows import NewClasses, raw_rows
from clinit.headtrain.heads.start.settings import Start
from clinit.headtrain.heads.statistics.class_statistics import ClassStatistics, row_weights
from clinit.headtrain.heads.statistics.lambda_curve import LambdaCurve

Ints = Int[np.ndarray, " _"]


MARGIN = 1e-4
"""Of a shift that decides on an image, as logits of heads are in float32."""


class Balance(NamedTuple):
    """What decides the shift of the biases of new rows, relative to these rows."""

    room: Float[np.ndarray, " right"]
    """By how much the largest old logit of each old image that is answered right exceeds its
    largest new logit, ascending: the image is lost if the shift is larger."""
    judged: int
    """Number of old images."""
    needed: Float[np.ndarray, " left_out"]
    """The shift from which each left-out new image is answered right, as far as one can."""
    untested: float
    """Share of new classes of a single image: nothing shows how much these need."""
    fitted: float = 0.0
    """The shift at which the loss is least."""

    def shift(self, points: float) -> float:
        """Return the shift with the most new images right at a loss of `points` of old ones.

        A shift above `fitted` that gains no left-out image is not taken, except by the share of
        new classes that have none.
        """
        if not len(self.room):
            return 0.0
        most = float(self.room[min(int(points / 100 * self.judged), len(self.room) - 1)]) - MARGIN
        useful = self.needed[self.needed < most]
        if not len(useful):
            return most
        enough = min(most, max(float(useful.max()) + MARGIN, self.fitted))
        return enough + self.untested * (most - enough)

    @property
    def lost(self) -> int:
        """Number of old images that the rows take as they are."""
        return int((self.room <= 0).sum())

    def moved(self, shift: float) -> Balance:
        """Return the same relative to rows whose biases are larger by `shift`."""
        room, needed, fitted = self.room - shift, self.needed - shift, self.fitted - shift
        return self._replace(room=room, needed=needed, fitted=fitted)

    def judged_by(
        self, old: Float[np.ndarray, "rows old"], new: Float[np.ndarray, "rows new"], labels: Ints
    ) -> Balance:
        """Return the same with other images of old classes as judges.

        Args:
            old: Their logits for the old rows of the head.
            new: Their logits for the new rows.
            labels: Their classes.
        """
        right = old.argmax(axis=1) == labels
        room = np.sort((old.max(axis=1) - new.max(axis=1))[right])
        return self._replace(room=room, judged=len(labels))


class LeftOut(NamedTuple):
    """Scaled leave-one-out logits: each image's logits come from rows computed without it.

    Only the factor and the shift of the rows have seen the image.
    """

    data: NewClasses
    drawn: Int[np.ndarray, " rows"]
    """Numbers of the images in the data."""
    logits: Float[Tensor, "rows new"]

    @property
    def labels(self) -> Int[np.ndarray, " rows"]:
        """The class of each image."""
        labels: np.ndarray = self.data.labels[self.drawn]
        return labels


@dataclass(frozen=True, slots=True, eq=False)
class Initialisation:
    """New rows, and facts about their scale."""

    rows: Rows
    factor: float = 1.0
    """Factor of the raw rows; for `row-norm`, the mean factor."""
    shift: float = 0.0
    """Shift of the biases."""
    loss_before: float | None = None
    """Class-balanced loss before the last search: of the raw rows, if the search was calibration,
    or of the calibrated rows, if it was the fit. None: no search."""
    loss_after: float | None = None
    steps: int | None = None
    """Number of steps of the last search."""
    lam: float | None = None
    """Ridge of least-square rows; None for other rows."""
    shrinkage: float | None = None
    """g of discriminants (`clinit.headtrain.heads.start.discriminant`); None for other rows."""
    quadratic: float | None = None
    """rho of discriminants."""
    curve: LambdaCurve | None = None
    """The curve by which lambda was chosen; None if lambda was not chosen from the data."""
    library: str | None = None
    """Library that computed the rows: `numpy` or `cupy`; None for random rows, which are drawn."""
    init: str | None = None
    """Kind of the rows in a first task without base classes, which ignores `--init`; else None."""
    repeats: dict[str, int] | None = None
    """Number of `images` that repeat each other, of their `groups` and of their `classes`."""
    left_out: Callable[[], LeftOut] | None = None
    """Computes leave-one-out logits; None if the rows were scaled without leaving images out."""
    balance: Balance | None = None
    """What another price of discriminants in points of old accuracy would change; None for other
    rows, and if no old class has a row."""

    @property
    def chosen(self) -> dict[str, float | None]:
        """What a discriminant chose, for a record."""
        return {"shrinkage": self.shrinkage, "quadratic": self.quadratic, "scale": self.factor}

    def shifted(self, shift: float, balance: Balance) -> Initialisation:
        """Return the same with biases and left-out logits that are larger by `shift`.

        Args:
            shift: Change of the biases.
            balance: Relative to the present rows.
        """
        before = self.left_out

        def left_out() -> LeftOut:
            assert before is not None
            found = before()
            return found._replace(logits=found.logits + shift)

        rows = Rows(self.rows.weight, self.rows.bias + shift)
        found = None if before is None else left_out
        return replace(
            self, rows=rows, shift=self.shift + shift, left_out=found, balance=balance.moved(shift)
        )

    def facts(self) -> Initialisation:
        """Return all facts without the rows and logits, which occupy device memory."""
        return replace(self, rows=Rows(np.empty((0, 0)), np.empty(0)), left_out=None, balance=None)


CASTS, TURNS = 8, 4
"""Number of casts (a cast is a draw of the classes that play), and of episodes per cast, each with
another image of every class."""
MAX_ROWS = 2048
"""Maximum number of old rows in episodes, or two rows per class if that is more."""
LONGEST = 1.5
"""Largest norm of least-square rows, relative to the rows that came with the head; 1 for other
kinds, whose rows contain the mean of all classes too. A backbone trained on the old classes
separates them better than new classes, so that the norm found in episodes may be too large."""
LONGEST_TRAINED = 2.0
"""Largest norm of least-square rows that will be trained."""
TOLERANCE = 0.5
"""Maximum increase of the loss in episodes, in nats, when rows that will be trained are lengthened;
a limit of 0.3 was a point worse next to a logistic head."""
LOSS = LOSSES["ce"]


class Episode(NamedTuple):
    """Rows computed from one image per playing class, and their logits for the judges."""

    weight: Float[Tensor, "playing dim"]
    logits: Float[Tensor, "judges playing"]
    target: Int[Tensor, " judges"]
    """Column of the label, or -1 for a class that keeps its row."""
    judges: Float[Tensor, " judges"]
    """Weights of the judges in the loss."""
    log_sum: Float[Tensor, " judges"]
    constant: Float[Tensor, " judges"]
    """The fixed part of the loss."""


def learnt_scale(
    raw: Initialisation, start: Start, sample: CalibrationSet, travel: float
) -> Calibration | None:
    """Learn the factor of new rows of single images from episodes; return factor and losses.

    Return None if nothing can be learnt: fewer than two old classes have two rows, the least
    squares of an episode are singular, or the best factor is not positive.

    Args:
        raw: The raw new rows.
        start: How the rows were computed.
        sample: The data, and the spread of the logits of old rows.
        travel: As in `scaled`.
    """
    old = to_numpy(sample.data.pretrained.weight)
    try:
        stage = _Stage(sample.data, start, raw.lam)
        playing, data = sample.new_share, sample.data
        if playing is not None:
            playing *= (data.stop - data.start) / (data.stop - data.came_with)
        episodes = list(stage.episodes(playing)) if old.any() else []
    except StatisticsError:
        return None
    if not episodes:
        return None
    weight, logits, target, judges, *fixed = map(torch.cat, zip(*episodes, strict=True))
    drawn = np.arange(len(target))
    sample = replace(
        sample, loss=LOSS, drawn=drawn, target=target, weight=judges, fixed=FixedPart(*fixed)
    )
    kept, unit = logits.new_zeros(logits.shape[1]), norm_ratio(old, weight.numpy())
    found = calibrate(sample, logits, guess=unit, kept_bias=kept)
    if found.factor <= 0:
        return None
    factor = min(found.factor, unit * (LONGEST if start.reads_lambda else 1.0))
    objective = Objective.of(sample, logits, kept)
    if travel:
        reach = 2 * travel * old.shape[1] ** 0.5 / np.linalg.norm(old, axis=1).mean()
        longest = min(factor + reach * unit, LONGEST_TRAINED * unit)
        factor = _longer(objective, factor, longest)
    point = np.array([factor, 0.0])
    loss = objective.value(point) - objective.penalty(point)
    carried = norm_ratio(weight.numpy(), to_numpy(raw.rows.weight))
    return found._replace(factor=factor * carried, loss_after=loss)


class _Stage:
    """The old rows from which episodes are drawn, in an order that depends on these rows only."""

    def __init__(self, data: NewClasses, start: Start, lam: float | None) -> None:
        old = np.flatnonzero(data.labels < data.start)
        two_each = 2 * len(np.unique(data.labels[old]))
        drawn = old[balanced_draw(data.labels[old], max(MAX_ROWS, two_each))]
        features = to_numpy(take(data.features, drawn)).astype(np.float64)
        order = np.lexsort((features.sum(axis=1), data.labels[drawn]))
        self.data, self.start, self.lam = data, start, lam
        self.head, self.features = data.head.on_host(), features[order]
        self.labels = data.labels[drawn][order]

    def episodes(self, weight: float | None) -> Iterator[Episode]:
        """Yield all episodes, or none if fewer than two classes have two rows.

        `weight` is the weight of the playing classes together; None: n / (n + C).
        """
        counts = np.bincount(self.labels)
        present, several = np.flatnonzero(counts), np.flatnonzero(counts > 1)
        new = self.data.stop - self.data.start
        share = new / (new + len(present))
        playing = min(max(1, round(share * len(present))), len(several) // 2)
        logits = self.features @ self.head.weight.T + self.head.bias
        rng = generator(0, Draw.EPISODES)
        for _ in range(CASTS if playing else 0):
            cast = np.sort(rng.choice(several, playing, replace=False))
            for rows, judges, target in self._played(cast, rng):
                yield self._judged(rows, judges, target, cast, weight or share, logits)

    def _played(self, cast: Ints, rng: np.random.Generator) -> Iterator[tuple[Rows, Ints, Ints]]:
        """Yield the new rows of each episode of a cast, and numbers and targets of its judges.

        In the head of an episode, the rows of the cast are last.
        """
        stays = ~np.isin(self.labels, cast)
        order = np.concatenate([np.unique(self.labels[stays]), cast])
        first, stop = len(order) - len(cast), len(order)
        place = np.zeros(self.data.start, dtype=int)
        place[order] = np.arange(stop)
        classes = place[self.labels]
        totals = np.bincount(classes[stays], minlength=stop)
        totals[first:] = 1
        summed = partial(ClassStatistics.of, weighting=self.start.weighting, totals=totals)
        known = summed(self.features[stays], classes[stays])
        base = self.data.start if self.data.base is None else self.data.base
        # An image is no judge if the row of its class was computed from it alone.
        judging = stays & ((self.labels < base) | (self.data.counts[self.labels] > 1))
        shuffled = [rng.permutation(np.flatnonzero(self.labels == each)) for each in cast]
        for turn in range(TURNS):
            images = np.array([rows[turn % len(rows)] for rows in shuffled])
            played = NewClasses(
                self.features[images], classes[images], self.head.between(0, stop), first, stop
            )
            added = summed(played.features, played.labels, shift=known.shift)
            rows = raw_rows(self.start, played, known + added, self.lam)
            aside = np.setdiff1d(np.concatenate(shuffled), images)
            judges = np.concatenate([aside, np.flatnonzero(judging)[turn::TURNS]])
            yield rows, judges, np.where(classes[judges] < first, -1, classes[judges] - first)

    def _judged(
        self, rows: Rows, judges: Ints, target: Ints, cast: Ints, share: float, known: np.ndarray
    ) -> Episode:
        labels = self.labels[judges]
        weights = row_weights(np.bincount(labels), "class")[labels]
        for group, part in ((target >= 0, share), (target < 0, 1 - share)):
            weights[group] *= part / max(weights[group].sum(), 1e-300)  # a group may be empty
        gone = [*cast, *range(self.data.start, self.data.stop)]
        columns = np.setdiff1d(np.arange(known.shape[1]), gone)
        own = np.where(target < 0, np.searchsorted(columns, labels), -1)
        bias = rows.bias if self.start.bias == "write" else 0.0
        logits = self.features[judges] @ rows.weight.T + bias
        arrays = (rows.weight, logits, target, weights / (CASTS * TURNS), own)
        weight, scores, column, share_of, label = map(torch.from_numpy, arrays)
        fixed = torch.from_numpy(known[np.ix_(judges, columns)])
        parts = LOSS.fixed_part(fixed, label, known.shape[1])
        return Episode(weight, scores, column, share_of, parts.log_sum, parts.constant)


def _longer(objective: Objective, factor: float, longest: float) -> float:
    """Return the largest factor up to `longest` with an acceptable loss, by bisection of convex F.

    The loss may exceed the loss at `factor` by `TOLERANCE`, but not the loss of rows of zeros.
    """

    def loss(factor: float) -> float:
        return objective.value(np.array([factor, 0.0]))

    most, low, high = min(loss(factor) + TOLERANCE, loss(0.0)), factor, longest
    if loss(longest) <= most:
        return longest
    while high > (1 + 1e-3) * low:
        middle = (low + high) / 2
        low, high = (middle, high) if loss(middle) <= most else (low, middle)
    return low


OF_SINGLE_ROWS = 2.0
"""Norm of least-square rows of single images that will be trained, relative to the rows that came
with the head. Used if it cannot be learnt from old classes; chosen on photographs."""


def scaled(
    raw: Initialisation,
    start: Start,
    data: NewClasses,
    sample: CalibrationSet | None = None,
    statistics: ClassStatistics | None = None,
    *,
    travel: float = math.inf,
) -> Initialisation:
    """Scale raw rows to match the head.

    Args:
        raw: The raw rows.
        start: Kind of the rows, and how to scale them.
        data: The data and the head.
        sample: Data for calibration, if `start.looks_around`.
        statistics: Statistics that the rows were computed from, if any.
        travel: How far training can move a weight: learning rate times number of updates; 0 if
            the rows will not be trained.
    """
    rows = raw.rows
    kept = data.stale.bias if start.bias == "keep" else None
    if start.is_calibrated and data.is_comparable:
        assert sample is not None
        found, left_out = None, None
        # `is_comparable` because, if no old class has a row, the loss is least with a shift so
        # large that a new class wins every image.
        if data.has_pairs or not _leaves_out(start):
            found, left_out = _calibrated(raw, start, sample, statistics, kept)
        elif start.reads_lambda or not (travel or start.own):
            found = learnt_scale(raw, start, sample, travel)
        if found is not None:
            factors = np.full(rows.bias.shape[0], found.factor)
            rows = _affine(rows, factors, found.shift, kept)
            return replace(raw, rows=rows, left_out=left_out, **found._asdict())
    factors = np.ones(rows.bias.shape[0])
    if start.is_calibrated and start.reads_lambda and data.has_old_rows and not data.has_pairs:
        # `norm_factor` would include rows of earlier tasks, so that norms grow from task to task.
        factor = norm_ratio(data.pretrained.weight, rows.weight)
        factors *= factor * (OF_SINGLE_ROWS if travel else 1.0)
    elif start.scale == "norm" or start.is_calibrated:
        factors *= norm_factor(rows, data)
    elif start.scale == "row-norm":
        factors = row_factors(rows, data)
    return replace(raw, rows=_affine(rows, factors, 0.0, kept), factor=float(factors.mean()))


def _leaves_out(start: Start) -> bool:
    return start.calibration == "leave-one-out" and start.init != "zero"


def _calibrated(
    raw: Initialisation,
    start: Start,
    sample: CalibrationSet,
    statistics: ClassStatistics | None,
    kept: Any | None,
) -> tuple[Calibration | None, Callable[[], LeftOut] | None]:
    """Return factor, shift and leave-one-out logits; None if the factor is not positive."""
    rows, leaves_out = raw.rows, _leaves_out(start)
    if leaves_out:
        sample = sample.judgeable
        logits = leave_one_out(start, rows, sample, statistics, raw.lam)
    else:
        bias = rows.bias if kept is None else namespace(rows.bias).zeros_like(rows.bias)
        logits = sample.logits(in_sample(Rows(rows.weight, bias)))
    guess, bias = norm_factor(rows, sample.data), None if kept is None else as_tensor(kept)
    found = calibrate(sample, logits, guess=guess, kept_bias=bias)
    if found.factor <= 0:
        return None, None
    scaled = found.factor * logits + found.shift + (0.0 if bias is None else bias)
    return found, partial(LeftOut, sample.data, sample.drawn, scaled) if leaves_out else None


def _affine(raw: Rows, factors: np.ndarray, shift: float, kept: Any | None) -> Rows:
    each = beside(raw.weight, factors)
    bias = each * raw.bias + shift if kept is None else kept
    return Rows(each[:, None] * raw.weight, bias)

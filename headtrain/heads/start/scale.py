"""What a start returns: rows of new classes with their scale, and what decides their shift."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from clinit.headtrain.heads.array import take, to_numpy
from clinit.headtrain.heads.groups import Mask
from clinit.headtrain.heads.linear import Rows
from clinit.headtrain.heads.start.new_rows import NewClasses
from clinit.headtrain.heads.statistics.solve import LambdaCurve

Ints = Int[np.ndarray, " _"]
Floats = Float[np.ndarray, " _"]


MARGIN = 1e-4
"""Of a shift that decides on an image, as logits of heads are in float32."""


class Balance(NamedTuple):
    """What decides the shift of the biases of new rows, relative to these rows."""

    room: Floats
    """By how much the largest old logit of each old image that is answered right exceeds its
    largest new logit, ascending: the image is lost if the shift is larger."""
    judged: int
    """Number of old images."""
    needed: Floats
    """The shift from which each left-out new image is answered right, as far as one can."""
    untested: float
    """Share of new classes of a single image: nothing shows how much these need."""
    fitted: float = 0.0
    """The shift at which the loss is least."""

    @classmethod
    def of(
        cls, highest: Floats, right: Mask, target: Ints, logits: Float[np.ndarray, "rows new"]
    ) -> Balance:
        """Return what decides the shift of these rows.

        Args:
            highest: Largest old logit of each image.
            right: Whether its largest old logit is that of its class.
            target: Column of its class among the new rows; -1 for images of old classes.
            logits: Its new logits, by rows computed without it.
        """
        is_new, own = target >= 0, logits[np.arange(len(target)), target]
        largest = logits.max(axis=1)
        return cls(
            room=np.sort((highest - largest)[right & ~is_new]),
            judged=int((~is_new).sum()),
            needed=(highest - own)[is_new & (own >= largest)],
            untested=1 - len(np.unique(target[is_new])) / logits.shape[1],
        )

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
        return np.asarray(self.data.labels[self.drawn])

    def mixed(self, other: LeftOut, rows: Rows, share: float) -> LeftOut:
        """Return the logits of the mean of two sets of rows, of which these have weight `share`.

        Args:
            other: Logits of the same new images, in the same order after other old images.
            rows: The second set, for the old images of the first.
            share: Weight of the first set.
        """
        mine, theirs = self._numbers, other._numbers
        known = np.full((1 + max(mine.max(), theirs.max()), self.logits.shape[1]), np.nan)
        known[theirs[theirs >= 0]] = other.logits.cpu().numpy()[theirs >= 0]
        features = to_numpy(take(self.data.features, self.drawn)).astype(np.float64)
        second = features @ rows.weight.T + rows.bias
        second[mine >= 0] = known[mine[mine >= 0]]
        kept = ~np.isnan(second[:, 0])  # the second set leaves out other images, too
        logits = torch.from_numpy(share * self.logits.cpu().numpy() + (1 - share) * second)
        return self._replace(drawn=self.drawn[kept], logits=logits[kept])

    @property
    def _numbers(self) -> Ints:
        """Number of each image among the new images of the data; -1 for an old image."""
        is_new = self.data.labels >= self.data.start
        return np.asarray(np.where(is_new, np.cumsum(is_new) - 1, -1)[self.drawn])


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
        """The choices of a discriminant, for a record."""
        return {"shrinkage": self.shrinkage, "quadratic": self.quadratic, "scale": self.factor}

    def mixed(self, other: Initialisation, share: float) -> Initialisation:
        """Return the mean of two starts of the same classes, of which this one has weight `share`.

        It has left-out logits, but no balance.
        """
        mine, rows = self.rows.on_host(), other.rows.on_host()

        def left_out() -> LeftOut:
            assert self.left_out is not None
            assert other.left_out is not None
            return self.left_out().mixed(other.left_out(), rows, share)

        pairs = ((mine.weight, rows.weight), (mine.bias, rows.bias))
        mean = Rows(*(share * one + (1 - share) * two for one, two in pairs))
        return replace(self, rows=mean, left_out=left_out, balance=None)

    def shifted(self, shift: float, balance: Balance | None = None) -> Initialisation:
        """Return the same with biases and left-out logits that are larger by `shift`.

        Args:
            shift: Change of the biases.
            balance: Relative to the present rows, if any.
        """
        rows = Rows(self.rows.weight, self.rows.bias + shift)
        found = self._left_out(lambda found: found._replace(logits=found.logits + shift))
        moved = balance and balance.moved(shift)
        return replace(self, rows=rows, shift=self.shift + shift, left_out=found, balance=moved)

    def next_to(self, scale: float, shared: Rows) -> Initialisation:
        """Return the same next to old rows that are larger by a factor and then by one row."""
        balance = self.balance

        def changed(found: LeftOut) -> LeftOut:
            features = to_numpy(take(found.data.features, found.drawn)).astype(np.float64)
            more = torch.from_numpy(features @ shared.weight.T + shared.bias)
            return found._replace(logits=scale * found.logits + more.to(found.logits))

        rows = self.rows.on_host()
        rows = Rows(scale * rows.weight + shared.weight, scale * rows.bias + shared.bias)
        if balance is not None:
            room, needed = scale * balance.room, scale * balance.needed
            balance = balance._replace(room=room, needed=needed, fitted=scale * balance.fitted)
        factor, shift = scale * self.factor, scale * self.shift
        found = self._left_out(changed)
        return replace(self, rows=rows, factor=factor, shift=shift, left_out=found, balance=balance)

    def _left_out(self, changed: Callable[[LeftOut], LeftOut]) -> Callable[[], LeftOut] | None:
        """Return what computes the left-out logits and changes them; None if nothing does."""
        before = self.left_out
        return None if before is None else lambda: changed(before())

    def facts(self) -> Initialisation:
        """Return all facts without the rows and logits, which occupy device memory."""
        return replace(self, rows=Rows(np.empty((0, 0)), np.empty(0)), left_out=None, balance=None)

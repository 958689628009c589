"""What a start returns: rows of new classes with their scale, and what decides their shift."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int
from torch import Tensor

from clinit.headtrain.heads.linear import Rows
from clinit.headtrain.heads.start.new_rows import NewClasses
from clinit.headtrain.heads.statistics.solve import LambdaCurve

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
        new classes that have none. If none is ever gained, the shift only pays a bound below 100.
        """
        if not len(self.room):
            return 0.0
        if points >= 100 and (self.needed == -np.inf).all():
            return self.fitted
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
        return np.asarray(self.data.labels[self.drawn])


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
    left_out: Callable[..., LeftOut] | None = None
    """Computes leave-one-out logits; None if the rows were scaled without leaving images out. That
    of fitted rows takes a function that changes the data of each part, such as guessed old rows."""
    balance: Balance | None = None
    """What another price of discriminants in points of old accuracy would change; None for other
    rows, and if no old class has a row."""

    @property
    def chosen(self) -> dict[str, float | None]:
        """The choices of a discriminant, for a record."""
        return {"shrinkage": self.shrinkage, "quadratic": self.quadratic, "scale": self.factor}

    def shifted(self, shift: float, balance: Balance | None = None) -> Initialisation:
        """Return the same with biases and left-out logits that are larger by `shift`.

        Args:
            shift: Change of the biases.
            balance: Relative to the present rows, if any.
        """
        before = self.left_out

        def left_out() -> LeftOut:
            assert before is not None
            found = before()
            return found._replace(logits=found.logits + shift)

        rows = Rows(self.rows.weight, self.rows.bias + shift)
        found, moved = before and left_out, balance and balance.moved(shift)
        return replace(self, rows=rows, shift=self.shift + shift, left_out=found, balance=moved)

    def facts(self) -> Initialisation:
        """Return all facts without the rows and logits, which occupy device memory."""
        return replace(self, rows=Rows(np.empty((0, 0)), np.empty(0)), left_out=None, balance=None)

"""Which initialisation of new rows, and how its rows are brought to the scale of the head."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, get_args

from clinit.headtrain.least_squares.statistics import Weighting
from clinit.headtrain.losses import loss_named

INITS: tuple[str, ...] = ("random", "class-mean", "least-square", "zero", "imprint", "lda")
READ_WEIGHTING: tuple[str, ...] = ("least-square", "lda")
"""Initialisations that depend on what an average over rows of several classes is."""
SCALES: tuple[str, ...] = ("none", "norm", "row-norm", "calibrated")


@dataclass(frozen=True, slots=True, kw_only=True)
class InitConfig:
    """Options of an initialisation."""

    init: str = "least-square"
    """One of INITS."""
    scale: str = "calibrated"
    """One of SCALES. Raw least-square rows predict targets in [0, 1] and lose to the logits of
    the trained rows; `calibrated` needs no tuning, `norm` is our reading of the paper, which does
    not mention scale. `random` is never scaled."""
    lam: float | Literal["auto"] = 0.05
    """Ridge of the least squares, >= 0; the paper: 0.05 (ConvNeXt), 1e-4 (ResNet). `auto`: that
    of the smallest error on a fifth of the rows, held out (see `lambda_curve`)."""
    class_mean: str = "raw"
    """`raw` as in the paper; `unit`: mean of L2-normalised features, the authors' earlier code."""
    weighting: Weighting = "class"
    """What an average is in the least squares and in LDA: `class`, over classes of averages over
    their rows, the only one that makes Eq. 3 of the paper the minimiser of its Eq. 1 where
    classes differ in size; `sample`, over rows."""
    bias: str = "write"
    """`keep` leaves the random bias of a new row in place, as the authors' pipeline seems to."""
    loss: str = "ce"
    """The loss that `calibrated` minimises: that of the training."""

    def __post_init__(self) -> None:
        for name, value, choices in (
            ("init", self.init, INITS),
            ("scale", self.scale, SCALES),
            ("class_mean", self.class_mean, ("raw", "unit")),
            ("weighting", self.weighting, get_args(Weighting)),
            ("bias", self.bias, ("write", "keep")),
        ):
            if value not in choices:
                raise ValueError(f"{name} is {value!r}, expected one of {choices}")
        if self.lam != "auto" and not (math.isfinite(self.lam) and self.lam >= 0):
            raise ValueError(f"lam is {self.lam}, expected a finite number >= 0 or 'auto'")
        loss_named(self.loss)

    @property
    def reads_lambda(self) -> bool:
        """Whether the rows depend on `lam`."""
        return self.init == "least-square"

    @property
    def reads_statistics(self) -> bool:
        """Whether the rows are a function of class statistics."""
        means = self.init == "class-mean" and self.class_mean == "raw"
        return means or self.init in READ_WEIGHTING

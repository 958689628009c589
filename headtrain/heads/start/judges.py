"""Rows that judge new rows, and the losses by which they do.

Images of old classes, and of new ones, are drawn evenly from the classes. In turn, the images of
each of `FOLDS` folds are left out, and judge rows computed without them. The logits of the rows of
the head that stay fixed are computed once; a loss needs three numbers of them.

For a softmax, the loss of an image is the cross entropy. For a head whose classes are independent
(sigmoid), it is the logistic loss of each new class by itself, sum_k log(1 + exp z_k) - z_y.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import Bool, Float, Int
from scipy.special import expit, logsumexp

from clinit.headtrain.heads.array import take, to_numpy
from clinit.headtrain.heads.linear import Rows
from clinit.headtrain.heads.start.new_rows import NewClasses

FOLDS = 5
ALL = -2
"""In place of a fold: no row is left out."""
OLD_ROWS, NEW_ROWS = 1024, 2048
"""Rows that judge; at least one of each class."""


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

    @classmethod
    def of(cls, data: NewClasses, rows: Int[np.ndarray, " rows"], fold: np.ndarray) -> Judges:
        """Read rows of one side by their numbers in the data, and compute their fixed logits."""
        features = to_numpy(take(data.features, rows)).astype(np.float64)
        labels, head = data.labels[rows], data.head.on_host()
        fixed = np.r_[0 : data.start, data.stop : len(head.bias)]
        logits = features @ head.weight[fixed].T + head.bias[fixed]
        is_old = labels < data.start
        own = logits[np.arange(len(rows)), labels] if is_old.all() else np.zeros(len(rows))
        weight = 1 / np.bincount(labels, minlength=1)[labels]
        if data.shares is not None:
            weight = weight * data.shares[rows]
        return cls(
            features=features,
            labels=labels if is_old.all() else labels - data.start,
            fold=fold,
            weight=weight / max(weight.sum(), 1e-300),
            highest=logits.max(1) if logits.shape[1] else np.full(len(rows), -np.inf),
            mass=logsumexp(logits, axis=1) if logits.shape[1] else np.full(len(rows), -np.inf),
            own=own,
            spread=float(logits.var(0).mean()) if logits.size else 0.0,
        )

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


def folds_of(labels: Int[np.ndarray, " rows"], groups: Int[np.ndarray, " rows"]) -> np.ndarray:
    """Deal the groups of each class out to the folds; the only group of a class gets -1."""
    fold = np.full(len(labels), -1)
    for each in np.unique(labels):
        rows = np.flatnonzero(labels == each)
        kinds, places = np.unique(groups[rows], return_inverse=True)
        if len(kinds) > 1:
            fold[rows] = places.reshape(-1) % FOLDS
    return fold


def left_out_logits(
    rows: Mapping[int, Rows], side: Judges, fold: Int[np.ndarray, " rows"]
) -> Float[np.ndarray, "rows new"]:
    """Return the logits of each row by rows computed without its fold."""
    found = logits_by(rows[ALL], side.features)
    for each, computed in rows.items():
        out = fold == each
        found[out] = logits_by(computed, side.features[out])
    return found


def logits_by(rows: Rows, features: Float[np.ndarray, "rows dim"]) -> np.ndarray:
    """Return the logits that rows of a head give to features."""
    logits: np.ndarray = features @ rows.weight.T + rows.bias
    return logits


def cross_entropy(
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


def logistic_loss(
    new: Float[np.ndarray, "rows new"], side: Judges, target: Int[np.ndarray, " rows"] | None
) -> tuple[float, Float[np.ndarray, "rows new"]]:
    """Return the loss of each new class by itself, as `cross_entropy` does for a softmax."""
    gradient = side.weight[:, None] * expit(new)
    value = np.logaddexp(0, new).sum(axis=1)
    if target is not None:
        here = np.arange(len(new))
        gradient[here, target] -= side.weight
        value -= new[here, target]
    return float(side.weight @ value), gradient

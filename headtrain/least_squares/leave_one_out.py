"""What the least-square head would answer for a row if it had been solved without that row.

With z = (h, 1), w_i the weight of row i in an average, A = Ave[z z^T] + lam I and
r_i = y_i - W z_i, leaving row i out of both averages of Eq. 3 of the paper changes the head by a
matrix of rank one,

    W_-i = W - w_i r_i (A^-1 z_i)^T / (1 - l_i),    l_i = w_i z_i^T A^-1 z_i  (the leverage),

so that the answers W_-i z_i = (W z_i - l_i y_i) / (1 - l_i) need no second solve (R. D. Cook,
S. Weisberg, "Residuals and influence in regression", 1982, Section 2.2). They are exact where the
other rows keep their weights, as in averages over rows.

In an average over classes the other n - 1 rows of a class count n / (n - 1) times as much when
one is gone. With few rows that matters: of two, the one that is left would else stand for half a
class, and all answers for it were too low. So the whole class is weighted anew first: with Z its
rows, w their weight and tau = w / (n - 1),

    A' = A + tau Z^T Z,    Z A'^-1 = (I + tau K)^-1 Z A^-1,    K = Z A^-1 Z^T,

and the column of its own class in Ave[z y^T] is multiplied by n / (n - 1). From the head with A'
each row is then left out as above, with w n / (n - 1) for its weight. That takes the inverse of a
matrix of n x n per class.

With A_0 = Sigma_T + lam I, a = A_0^-1 mu and rho = lam / (1 + lam), as in `solve`, c = h - mu and
t = c.a:

    z_i^T A^-1 z_j = c_i^T A_0^-1 c_j + 1 - rho (1 - t_i) (1 - t_j) / (1 + rho mu.a),

and the last entry of A^-1 z, which tells what the bias has of it, is

    (1 - rho) (1 - t) / (1 + rho mu.a).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from clinit.headtrain.array import beside, namespace

MOST_ROWS = 32
"""Classes of more rows are not weighted anew: one row of them is 3 % at most."""
BLOCK_ROWS = 4096


@dataclass(frozen=True, slots=True, eq=False)
class Block:
    """Rows that are looked at together."""

    rows: Int[np.ndarray, " rows"]
    """Numbers of the rows, class by class."""
    groups: tuple[Int[np.ndarray, "_ _"], ...]
    """Places in `rows` of whole classes of n rows, which are weighted anew."""


def blocks_of(
    labels: Int[np.ndarray, " all"], drawn: Int[np.ndarray, " rows"], *, reweighted: bool
) -> tuple[list[Block], Int[np.ndarray, " rows"]]:
    """Return blocks with the drawn rows, and their places in these blocks joined.

    Args:
        labels: Class of every row of the data.
        drawn: Numbers of the rows to look at, ascending; of a class that is weighted anew, the
            others come along.
        reweighted: Whether classes are weighted anew.
    """
    counts = np.bincount(labels)
    whole = (counts > 1) & (counts <= MOST_ROWS) & reweighted
    needed = np.zeros(len(labels), dtype=bool)
    needed[drawn] = True
    needed |= (whole & (np.bincount(labels[drawn], minlength=len(counts)) > 0))[labels]
    rows = np.flatnonzero(needed)
    rows = rows[np.argsort(labels[rows], kind="stable")]
    places = np.empty(len(labels), dtype=np.int64)
    places[rows] = np.arange(len(rows))
    blocks = [
        Block(rows[part], tuple(_groups(labels[rows[part]], counts, whole)))
        for part in _parts(labels[rows])
    ]
    return blocks, places[drawn]


def _parts(labels: Int[np.ndarray, " rows"]) -> Iterator[slice]:
    """Cut ascending labels where a class ends, as soon as there are `BLOCK_ROWS` rows."""
    start = 0
    for end in [*np.flatnonzero(np.diff(labels)) + 1, len(labels)]:
        if end - start >= BLOCK_ROWS or end == len(labels):
            yield slice(start, int(end))
            start = int(end)


def _groups(
    labels: Int[np.ndarray, " rows"], counts: np.ndarray, whole: np.ndarray
) -> Iterator[Int[np.ndarray, "_ _"]]:
    inside = whole[labels]
    for n in np.unique(counts[labels[inside]]):
        yield np.flatnonzero(inside & (counts[labels] == n)).reshape(-1, n)


@dataclass(frozen=True, slots=True, eq=False)
class Answers:
    """What the head answers for rows, and what it takes to leave them out."""

    scores: Float[Any, "rows classes"]
    """W z of each row, for some of the classes."""
    target: Int[np.ndarray, " rows"]
    """Column of the label of each row; -1 where it is not one of these classes."""
    weights: Float[np.ndarray, " rows"]
    """w_i."""
    white: Float[Any, "rows dim"]
    """Vectors whose products are c_i^T A_0^-1 c_j."""
    overlaps: Float[Any, " rows"]
    """t_i = c_i.a."""
    mean_overlap: float
    """mu.a."""
    lam: float
    bias: Float[Any, " classes"] | None = None
    """Biases of these classes, to be left out of the result: then that is V_-i h_i."""

    def without(self, groups: Iterable[Int[np.ndarray, "_ _"]] = ()) -> Any:
        """Return the scores (rows, classes) that the rows would get from a solve without them.

        Args:
            groups: Places of the rows of whole classes of n rows each, to be weighted anew.
        """
        xp = namespace(self.scores)
        found = [self._kept_weights()]
        rows = len(self.target)
        order = np.arange(rows)
        for places in groups:
            order[places.reshape(-1)] = np.arange(rows, rows + places.size)
            rows += places.size
            found.append(xp.reshape(self._weighted_anew(places), (places.size, -1)))
        return xp.take(xp.concat(found), beside(self.scores, order), axis=0)

    @property
    def _truth(self) -> Float[Any, "rows classes"]:
        columns = np.arange(self.scores.shape[1])
        truth = (self.target[:, None] == columns[None, :]).astype(np.float64)
        return beside(self.scores, truth)

    @property
    def _of_bias(self) -> Float[Any, " rows"]:
        """The last entry of A^-1 z."""
        rho = self.lam / (1 + self.lam)
        return (1 - rho) * (1 - self.overlaps) / (1 + rho * self.mean_overlap)

    def _kept_weights(self) -> Float[Any, "rows classes"]:
        xp = namespace(self.scores)
        products = xp.sum(self.white**2, axis=1)
        rho = self.lam / (1 + self.lam)
        whole = products + 1 - rho * (1 - self.overlaps) ** 2 / (1 + rho * self.mean_overlap)
        weights = beside(self.scores, self.weights)
        residual = self._truth - self.scores
        left = (1 - weights * whole)[:, None]
        if self.bias is None:
            return self.scores - residual * (weights * whole)[:, None] / left
        own = self.scores - xp.reshape(self.bias, (1, -1))
        return own - residual * (weights * (whole - self._of_bias))[:, None] / left

    def _weighted_anew(self, places: Int[np.ndarray, "groups n"]) -> Float[Any, "groups n classes"]:
        xp = namespace(self.scores)
        rows = beside(self.scores, places.reshape(-1))

        def grouped(values: Any) -> Any:
            return xp.reshape(xp.take(values, rows, axis=0), (*places.shape, *values.shape[1:]))

        n = places.shape[1]
        weight = beside(self.scores, self.weights[places[:, :1]])[:, :, None]
        added = weight / (n - 1)
        white, free = grouped(self.white), 1 - grouped(self.overlaps)
        rho = self.lam / (1 + self.lam)
        gram = white @ xp.matrix_transpose(white) + 1
        gram = gram - rho / (1 + rho * self.mean_overlap) * free[:, :, None] * free[:, None, :]
        truth, scores = grouped(self._truth), grouped(self.scores)
        more = 1 + truth / (n - 1)
        inverse = xp.linalg.inv(beside(gram, np.eye(n)) + added * gram)
        moved = inverse @ (scores * more)
        residual = truth - moved
        own = weight + added
        share = own * xp.linalg.diagonal(inverse @ gram)[:, :, None]
        if self.bias is None:
            return moved - residual * share / (1 - share)
        gram = gram - grouped(self._of_bias)[:, None, :]
        scores = (scores - xp.reshape(self.bias, (1, 1, -1))) * more - added * (gram @ moved)
        of_weights = own * xp.linalg.diagonal(gram @ inverse)[:, :, None]
        return scores - residual * of_weights / (1 - share)

"""Scores of a row from the least-square head that is solved without this row.

Let z = (h, 1), w_i the weight of row i in an average, A = Ave[z z^T] + lam I and
r_i = y_i - W z_i. Leaving row i out of both averages of Eq. 3 of the paper changes the head by a
matrix of rank one,

    W_-i = W - w_i r_i (A^-1 z_i)^T / (1 - l_i),    l_i = w_i z_i^T A^-1 z_i  (the leverage),

so that the scores W_-i z_i = (W z_i - l_i y_i) / (1 - l_i) need no second solve (R. D. Cook,
S. Weisberg, "Residuals and influence in regression", 1982, Section 2.2). They are exact if the
other rows keep their weights, as in averages over rows.

In an average over classes, the other n - 1 rows of a class count n / (n - 1) times as much once a
row is left out. This matters with few rows: the one left of two rows would otherwise count as half
a class, and the scores of the class would be too low. Therefore the class is reweighted first: with
Z its rows, w their weight and tau = w / (n - 1),

    A' = A + tau Z^T Z,    Z A'^-1 = (I + tau K)^-1 Z A^-1,    K = Z A^-1 Z^T,

and the column of the class in Ave[z y^T] is multiplied by n / (n - 1). From the head with A', each
row is then left out as above, with weight w n / (n - 1). This takes the inverse of an n x n matrix
per class, with eigenvalues in [1, 2].

Rows that repeat each other are left out together. With G groups in the class, tau_i = w_i / (G - 1)
and G / (G - 1) replace the factors above. With K' = (I + K diag(tau))^-1 K, S' the scores and b'
the biases of the reweighted class, D = diag(w G / (G - 1)) and B_ij = 1 within a group,

    S_- = Y - (I - B * K' D)^-1 (Y - S'),    V_- h_i = S_-i - b' + sum_j B_ij D_j u'_j (Y - S_-)_j,

which takes an inverse per group; u' is the last column of Z A'^-1.

With A_0 = Sigma_T + lam I, a = A_0^-1 mu and rho = lam / (1 + lam), as in `solve`, c = h - mu and
t = c.a:

    z_i^T A^-1 z_j = c_i^T A_0^-1 c_j + 1 - rho (1 - t_i) (1 - t_j) / (1 + rho mu.a),

and the last entry of A^-1 z, the part of the bias, is

    (1 - rho) (1 - t) / (1 + rho mu.a).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Int

from clinit.headtrain.heads.array import beside, namespace

MOST_ROWS = 32
"""Maximum number of groups of a class that is reweighted; in larger classes, a group is at most 3 %
of the class."""
MOST_REPEATED = 256
"""Maximum number of rows of a class that is reweighted, if some rows repeat other rows."""
BLOCK_ROWS = 4096


@dataclass(frozen=True, slots=True, eq=False)
class Unit:
    """A block of rows: units of n rows each, which are computed together."""

    rows: Int[np.ndarray, "units n"]
    """Row numbers."""
    reweighted: bool
    """Whether each unit is a whole class, which is reweighted when rows are left out."""
    groups: Int[np.ndarray, "units n"] | None = None
    """The group of each row, which is left out as a whole; None: each row is left out alone."""

    @property
    def all_rows(self) -> Int[np.ndarray, " rows"]:
        """The rows of all units."""
        return self.rows.reshape(-1)


def blocks_of(
    labels: Int[np.ndarray, " all"],
    drawn: Int[np.ndarray, " rows"],
    reweighted: Bool[np.ndarray, " classes"],
    counts: Int[np.ndarray, " classes"],
    groups: Int[np.ndarray, " all"] | None = None,
) -> tuple[list[Unit], Int[np.ndarray, " rows"]]:
    """Return blocks of rows, and the place of each drawn row in the joined blocks.

    The units of a block are whole classes of n rows, which are reweighted, or whole groups, or
    single rows. A block has at most `BLOCK_ROWS` rows.

    Args:
        labels: Class of every row of the data.
        drawn: Numbers of the rows to leave out. Blocks also contain the other rows of reweighted
            classes and of groups.
        reweighted: The classes to reweight, if they have 2 to `MOST_ROWS` groups.
        counts: Number of rows of each class; a group counts as one row.
        groups: Groups of rows that repeat each other; None: no row repeats another.
    """
    whole = reweighted & (counts > 1) & (counts <= MOST_ROWS)
    repeats = np.zeros(len(reweighted), dtype=bool)
    if groups is not None:
        rows_of_class = np.bincount(labels, minlength=len(reweighted))
        repeats = rows_of_class > counts
        whole &= ~repeats | (rows_of_class <= MOST_REPEATED)
    classes = labels[drawn]
    alone = drawn[~(whole | repeats)[classes]]
    blocks = [Unit(rows, reweighted=False) for rows in _cut(alone.reshape(-1, 1))]
    for rows in _units(labels, classes[(whole & ~repeats)[classes]]):
        blocks.append(Unit(rows, reweighted=True))
    if groups is not None:
        for rows in _units(labels, classes[(whole & repeats)[classes]]):
            blocks.append(Unit(rows, reweighted=True, groups=groups[rows]))
        for rows in _units(groups, groups[drawn[(~whole & repeats)[classes]]]):
            blocks.append(Unit(rows, reweighted=False, groups=groups[rows]))
    joined = np.concatenate([block.all_rows for block in blocks])
    places = np.empty(len(labels), dtype=np.int64)
    places[joined] = np.arange(len(joined))
    return blocks, places[drawn]


def _units(
    keys: Int[np.ndarray, " all"], chosen: Int[np.ndarray, " _"]
) -> Iterator[Int[np.ndarray, "_ _"]]:
    """Yield blocks of the rows with chosen keys; a unit has one key, units of a block one size."""
    chosen = np.unique(chosen)
    rows = np.flatnonzero(np.isin(keys, chosen))
    rows = rows[np.argsort(keys[rows], kind="stable")]
    sizes = np.unique(keys[rows], return_counts=True)[1]
    for n in np.unique(sizes):
        yield from _cut(rows[np.repeat(sizes == n, sizes)].reshape(-1, n))


def _cut(units: Int[np.ndarray, "units n"]) -> list[Int[np.ndarray, "_ _"]]:
    most = max(1, BLOCK_ROWS // units.shape[1])
    return np.split(units, range(most, len(units), most)) if len(units) else []


@dataclass(frozen=True, slots=True, eq=False)
class Answers:
    """Scores of rows, and the terms that are needed to leave rows out."""

    scores: Float[Any, "rows classes"]
    """W z of each row, for some of the classes."""
    target: Int[np.ndarray, " rows"]
    """Column of the label of each row in `scores`; -1 if `scores` has no such column."""
    weights: Float[np.ndarray, " rows"]
    """w_i, times the share of the row if it repeats other rows."""
    white: Float[Any, "rows dim"]
    """Vectors whose products are c_i^T A_0^-1 c_j."""
    overlaps: Float[Any, " rows"]
    """t_i = c_i.a."""
    mean_overlap: float
    """mu.a."""
    rho: float
    bias: Float[Any, " classes"] | None = None
    """Biases of the classes of `scores`, if results must exclude biases: they are then V_-i h_i."""

    def without(self, unit: Unit) -> Float[Any, "rows classes"]:
        """Return the score of each row of a block from a solve without this row, or its group."""
        if unit.groups is not None:
            return self._without_groups(unit.reweighted, unit.groups)
        xp, n = namespace(self.scores), unit.rows.shape[1]
        gain = 1 / (n - 1) if unit.reweighted else 0.0  # of the weight of each other row
        truth = self._grouped(self._truth, n)
        more = 1 + gain * truth
        weight = self._grouped(beside(self.scores, self.weights), n)[:, :, None]
        added = gain * weight[:, :1, :]
        gram = self._gram(n)
        inverse = xp.linalg.inv(beside(gram, np.eye(n)) + added * gram)
        scores = inverse @ (self._grouped(self.scores, n) * more)
        share = (weight + added) * xp.linalg.diagonal(inverse @ gram)[:, :, None]
        residual = (truth - scores) / (1 - share)
        if self.bias is None:
            return xp.reshape(scores - residual * share, self.scores.shape)
        gram = gram - self._grouped(self._of_bias, n)[:, None, :]
        own = self._grouped(self.scores - xp.reshape(self.bias, (1, -1)), n) * more
        share = (weight + added) * xp.linalg.diagonal(gram @ inverse)[:, :, None]
        return xp.reshape(own - added * (gram @ scores) - residual * share, self.scores.shape)

    def _without_groups(
        self, reweighted: bool, groups: Int[np.ndarray, "units n"]
    ) -> Float[Any, "rows classes"]:
        xp, n = namespace(self.scores), groups.shape[1]
        same = groups[:, :, None] == groups[:, None, :]
        others = (1 / same.sum(axis=2)).sum(axis=1).round() - 1
        gain = beside(self.scores, (1 / others if reweighted else 0.0 * others)[:, None, None])
        alike = beside(self.scores, same.astype(np.float64))
        truth = self._grouped(self._truth, n)
        weight = self._grouped(beside(self.scores, self.weights), n)[:, :, None]
        eye, gram, more = beside(self.scores, np.eye(n)), self._gram(n), 1 + gain * truth
        turned = xp.matrix_transpose(weight)  # of columns
        inverse = xp.linalg.inv(eye + gram * gain * turned)
        scores = inverse @ (self._grouped(self.scores, n) * more)
        system = eye - alike * (inverse @ gram) * (1 + gain) * turned
        residual = xp.linalg.solve(system, truth - scores)  # y - S_-
        if self.bias is None:
            return xp.reshape(truth - residual, self.scores.shape)
        of_bias = self._grouped(self._of_bias, n)[:, :, None]
        bias = xp.reshape(self.bias, (1, 1, -1)) * (1 + gain * xp.max(truth, axis=1, keepdims=True))
        bias = bias - gain * xp.matrix_transpose(weight * of_bias) @ scores
        removed = (1 + gain) * weight * (inverse @ of_bias) * residual
        return xp.reshape(truth - residual - bias + alike @ removed, self.scores.shape)

    def _grouped(self, values: Float[Any, "rows ..."], n: int) -> Float[Any, "groups n ..."]:
        return namespace(values).reshape(values, (-1, n, *values.shape[1:]))

    @property
    def _truth(self) -> Float[Any, "rows classes"]:
        columns = np.arange(self.scores.shape[1])
        truth = (self.target[:, None] == columns[None, :]).astype(np.float64)
        return beside(self.scores, truth)

    @property
    def _of_bias(self) -> Float[Any, " rows"]:
        """The last entry of A^-1 z."""
        return (1 - self.rho) * (1 - self.overlaps) / (1 + self.rho * self.mean_overlap)

    def _gram(self, n: int) -> Float[Any, "groups n n"]:
        """z_i^T A^-1 z_j within each group."""
        xp = namespace(self.white)
        white, rest = self._grouped(self.white, n), 1 - self._grouped(self.overlaps, n)
        outer = rest[:, :, None] * rest[:, None, :]
        products = white @ xp.matrix_transpose(white)
        return products + 1 - self.rho / (1 + self.rho * self.mean_overlap) * outer

"""What the least-square head would answer for a row if it had been solved without that row.

With z = (h, 1), w_i the weight of row i in an average, A = Ave[z z^T] + lam I and
r_i = y_i - W z_i, leaving row i out of both averages of Eq. 3 of the paper changes the head by a
matrix of rank one,

    W_-i = W - w_i r_i (A^-1 z_i)^T / (1 - l_i),    l_i = w_i z_i^T A^-1 z_i  (the leverage),

so that the answers W_-i z_i = (W z_i - l_i y_i) / (1 - l_i) need no second solve (R. D. Cook,
S. Weisberg, "Residuals and influence in regression", 1982, Section 2.2). They are exact where the
other rows keep their weights; with averages over classes, the other n - 1 rows of a class would
have n / (n - 1) times that weight in a solve of their own.

With A_0 = Sigma_T + lam I, a = A_0^-1 mu and rho = lam / (1 + lam), as in `solve`, and c = h - mu:

    z^T A^-1 z = c^T A_0^-1 c + 1 - rho (1 - t)^2 / (1 + rho mu.a),    t = c.a,

and the last entry of A^-1 z, which tells what the bias has of it, is

    (1 - rho) (1 - t) / (1 + rho mu.a).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float, Int

from clinit.headtrain.array import beside, namespace


class Leverage(NamedTuple):
    """What rows have of their own answers."""

    whole: Float[Any, " rows"]
    """l_i = w_i z_i^T A^-1 z_i, in [0, 1)."""
    of_weights: Float[Any, " rows"]
    """The same for the weights alone: w_i (h_i, 0)^T A^-1 z_i."""


def leverage(
    weights: Float[Any, " rows"],
    distances: Float[Any, " rows"],
    overlaps: Float[Any, " rows"],
    mean_overlap: float,
    lam: float,
) -> Leverage:
    """Return the leverages of rows.

    Args:
        weights: w_i.
        distances: c_i^T A_0^-1 c_i.
        overlaps: t_i = c_i.a.
        mean_overlap: mu.a.
        lam: Ridge of the solve.
    """
    rho = lam / (1 + lam)
    scale = 1 + rho * mean_overlap
    whole = distances + 1 - rho * (1 - overlaps) ** 2 / scale
    bias = (1 - rho) * (1 - overlaps) / scale
    return Leverage(weights * whole, weights * (whole - bias))


def left_out(
    scores: Float[Any, "rows classes"],
    target: Int[np.ndarray, " rows"],
    share: Leverage,
    bias: Float[Any, " classes"] | None = None,
) -> Float[Any, "rows classes"]:
    """Return the scores that rows would get from a solve without them.

    Args:
        scores: W z of each row, for some of the classes.
        target: Column of the label of each row; -1 where it is not one of these classes.
        share: Leverages of the rows.
        bias: Biases of these classes, to be left out of the result: then that is V_-i h_i.
    """
    xp = namespace(scores)
    columns = np.arange(scores.shape[1])
    truth = beside(scores, (target[:, None] == columns[None, :]).astype(np.float64))
    residual = truth - scores
    if bias is None:
        return scores - residual * (share.whole / (1 - share.whole))[:, None]
    own = scores - xp.reshape(bias, (1, -1))
    return own - residual * (share.of_weights / (1 - share.whole))[:, None]

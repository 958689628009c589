"""Fitted rows: the new rows of the least training loss, held by a ridge towards where they start.

With x_i = (h_i / r, 1), r^2 the weighted mean of |h|^2 / d, so that all entries of x are of about
the same size, W = (r V, b) the new rows and W_0 those that the search starts from, the rows
minimise

    G(W) = sum_i w_{y_i} loss(u_i, y_i) + ridge / (2 C n) sum_k |W_k - W_0k|^2,
    w_c = 1 / (C n_c),

over buffer and new task, with n the mean number of rows of a new class: a row of data weighs
1 / (C n), and the ridge as much as `ridge` of them, however many there are. Only the new rows move;
the other logits enter through two numbers per row, computed once. Each loss is convex in its logits
and these are affine in W: G is strictly convex.

The minimiser is approached by L-BFGS with a line search for the strong Wolfe conditions
(J. Nocedal, S. J. Wright, "Numerical optimization", 2006, Algorithms 7.5 and 3.5), as PyTorch has
it. Products with features are in the type of these, sums and rows in float64.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from clinit.headtrain.array import as_tensor
from clinit.headtrain.init.surroundings import Surroundings, slices, wide_enough

MAX_STEPS = 30


@dataclass(frozen=True, slots=True, eq=False)
class Fit:
    """What fitting found."""

    weight: Float[Tensor, "new dim"]
    bias: Float[Tensor, " new"]
    loss_before: float
    """At the start; the ridge left out."""
    loss_after: float
    steps: int


def fit(
    around: Surroundings,
    weight: Float[Tensor, "new dim"],
    bias: Float[Tensor, " new"],
    ridge: float,
    *,
    fits_bias: bool = True,
    max_steps: int = MAX_STEPS,
) -> Fit:
    """Minimise G from the rows (weight, bias).

    Args:
        around: The data, and all logits that stay fixed.
        weight: V_0, in float64.
        bias: b_0.
        ridge: Strength of the ridge, in rows of data.
        fits_bias: Whether the biases may move.
        max_steps: Bound on the steps of L-BFGS.
    """
    blocks = [
        as_tensor(around.features(rows, wide_enough(around.data))) for rows in slices(len(around))
    ]
    features = torch.cat(blocks)
    squares = around.weight @ features.square().sum(1, dtype=torch.float64)
    size = float((squares / features.shape[1]).sqrt()) or 1.0
    start = torch.cat([size * weight, bias[:, None]], dim=1)
    rows = start.clone().requires_grad_()
    data = around.data
    rows_per_class = float(data.counts[data.start :].mean())
    strength = ridge / (len(around.present) * rows_per_class)
    values: list[float] = []

    def evaluate() -> Tensor:
        moved = rows.detach() - start
        value, gradient = _loss(around, features, rows.detach(), size)
        if not fits_bias:
            gradient[:, -1] = 0.0
        rows.grad = gradient + strength * moved
        values.append(value)
        return gradient.new_tensor(value + strength / 2 * float(moved.square().sum()))

    search = torch.optim.LBFGS(
        [rows], max_iter=max_steps, max_eval=2 * max_steps, history_size=10,
        tolerance_grad=1e-7, tolerance_change=1e-9, line_search_fn="strong_wolfe",
    )  # fmt: skip
    with torch.enable_grad():
        search.step(evaluate)
    found = rows.detach()
    after, _ = _loss(around, features, found, size)
    steps = int(search.state[rows]["n_iter"])
    return Fit(found[:, :-1] / size, found[:, -1].clone(), values[0], after, steps)


def _loss(
    around: Surroundings, features: Float[Tensor, "rows dim"], rows: Tensor, size: float
) -> tuple[float, Tensor]:
    """Return the loss and its gradient in the rows (r V, b)."""
    weight = (rows[:, :-1] / size).to(features.dtype)
    gradient = torch.zeros_like(rows)
    value = rows.new_zeros(())
    for block in slices(len(features)):
        logits = (features[block] @ weight.T).double() + rows[:, -1]
        local = around.terms(logits, block)
        weighted = around.weight[block, None] * local.gradient
        value += around.weight[block] @ local.value
        gradient[:, :-1] += (weighted.to(features.dtype).T @ features[block]).double() / size
        gradient[:, -1] += weighted.sum(0)
    return float(value), gradient

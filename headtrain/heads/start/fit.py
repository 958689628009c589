"""New rows that minimise the training loss, with a ridge that holds them near their start.

With u the logits and w the weights of `clinit.headtrain.heads.start.calibrate`, x_i = (h_i / r, 1),
r^2 the weighted mean of |h|^2 / d, so that all entries of x are of about the same size,
W = (r V, b) the new rows and W_0 the rows that the search starts from, the rows minimise

    G(W) = sum_i w_{y_i} loss(u_i, y_i) + ridge / (2 C n) sum_k |W_k - W_0k|^2,
    w_c = 1 / (C n_c),

over buffer and new task, with n the mean number of rows of a new class. A row of data of a new
class weighs about 1 / (C n). The ridge weighs as much as `ridge` such rows, however many rows there
are. All other logits are fixed. Each loss is convex in its logits, and the logits are affine in W,
so G is strictly convex.

The row of a class of n images fits these very images, and scores lower on others, the more the
smaller n is. `evened` therefore moves the bias of each new class by

    EVENED L (1/(n+1) - its mean over the new classes),    L = V_k.(mu_k - mean of the other mu),

with mu the means of the new classes. Classes of as many images are not moved.

The minimiser is approached by PyTorch's L-BFGS, with a line search for the strong Wolfe conditions
(J. Nocedal, S. J. Wright, "Numerical optimization", 2006, Algorithms 7.5 and 3.5). Products with
features use the dtype of the features, sums and rows float64.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from clinit.headtrain.heads.array import as_tensor, beside, namespace, slices
from clinit.headtrain.heads.linear import Rows
from clinit.headtrain.heads.start.calibration_set import CalibrationSet, terms_of
from clinit.headtrain.heads.start.new_rows import NewClasses, new_class_means

STEPS = 30
EVENED = 1 / 3
"""Next to four classes of eight images, a class of one then gains 14 to 21 points on photographs
and text and 5 on audio, at 0 to 1 point of old classes."""


class Fit(NamedTuple):
    """Result of fitting; the losses exclude the ridge."""

    rows: Rows
    loss_before: float
    """Loss of the rows that the search starts from."""
    loss_after: float
    steps: int


def fit(
    sample: CalibrationSet, begin: Rows, ridge: float, *, fits_bias: bool, max_steps: int = STEPS
) -> Fit:
    """Minimise G from rows (V_0, b_0).

    Args:
        sample: The data, and all fixed logits.
        begin: Rows that the search starts from; the ridge holds the result near them.
        ridge: Strength of the ridge, in rows of data.
        fits_bias: Whether the biases may move. If they may, they are evened.
        max_steps: Bound on the steps of L-BFGS.
    """
    data, features = sample.data, sample.wide_features()
    squares = sample.weight @ features.square().sum(1, dtype=torch.float64)
    size = float((squares / features.shape[1]).sqrt()) or 1.0
    start = torch.cat([size * as_tensor(begin.weight), as_tensor(begin.bias)[:, None]], dim=1)
    rows = start.clone().requires_grad_()
    rows_per_class = float(data.counts[data.start :].mean())
    classes = float(len(np.unique(sample.labels)))
    if sample.new_share is not None:  # the C at which 1 / C is the weight of a new class
        classes = (data.stop - data.came_with) / sample.new_share
    strength = ridge / (classes * rows_per_class)
    values: list[float] = []

    def evaluate() -> Tensor:
        moved = rows.detach() - start
        value, gradient = _loss(sample, features, rows.detach(), size)
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
    weight, bias = (found[:, :-1] / size).cpu().numpy(), found[:, -1].cpu().numpy()
    end = Rows(beside(begin.weight, weight), beside(begin.weight, bias))
    if fits_bias:
        end = evened(end, data)
        found[:, -1] = as_tensor(end.bias)
    after, _ = _loss(sample, features, found, size)
    return Fit(end, values[0], after, int(search.state[rows]["n_iter"]))


def evened(rows: Rows, data: NewClasses) -> Rows:
    """Raise the biases of new classes of fewer images than others, and lower the other biases."""
    parts, xp = 1 / (data.counts[data.start :] + 1), namespace(rows.weight)
    if len(parts) == 1:
        return rows
    means = new_class_means(data)
    others = (xp.sum(means, axis=0) - means) / (len(parts) - 1)
    lead = xp.sum(rows.weight * (means - others), axis=1)
    return Rows(rows.weight, rows.bias + beside(lead, EVENED * (parts - parts.mean())) * lead)


def _loss(
    sample: CalibrationSet, features: Float[Tensor, "rows dim"], rows: Tensor, size: float
) -> tuple[float, Tensor]:
    weight = (rows[:, :-1] / size).to(features.dtype)
    gradient = torch.zeros_like(rows)
    value = rows.new_zeros(())
    for block in slices(len(features)):
        logits = (features[block] @ weight.T).double() + rows[:, -1]
        local = terms_of([sample], logits, block)
        weighted = sample.weight[block, None] * local.gradient
        value += sample.weight[block] @ local.value
        gradient[:, :-1] += (weighted.to(features.dtype).T @ features[block]).double() / size
        gradient[:, -1] += weighted.sum(0)
    return float(value), gradient

"""Multinomial logistic regression on any number of rows, by L-BFGS.

    minimise  1/n sum_i CE(W h_i + b, y_i) + |W|^2 / (2 C n)

which is scikit-learn's objective divided by C n; the bias has no penalty. Rows are widened to
float64 one block at a time. Besides the stored features, the memory thus contains a block of logits
and some twenty copies of the head, while scikit-learn has all features and logits in float64.

Source: D. C. Liu, J. Nocedal, "On the limited memory BFGS method for large scale optimization",
Mathematical Programming 45, 1989; here SciPy's L-BFGS-B without bounds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from scipy.optimize import minimize
from torch import Tensor

from clinit.headtrain.heads.array import slices
from clinit.headtrain.heads.linear import Rows
from clinit.headtrain.probe.settings import ProbeConfig
from clinit.headtrain.protocol.train.heads import Bias, LabelledRows, Weight

Vector = Float[np.ndarray, " parameters"]
"""Weights, then biases."""
Tell = Callable[[int, int], None]
BLOCK_ROWS = 8192
BLOCK_VALUES = 2**22
"""Logits computed at a time: 32 MB in float64."""
GRADIENT = 1e-4
"""Stop when no entry of the gradient of the mean loss is larger, as scikit-learn does."""


@dataclass(frozen=True, slots=True, eq=False)
class Fitted:
    """A head that was fitted with one penalty."""

    rows: Rows
    """The head, for features as stored."""
    loss: float
    """Mean cross entropy of its training rows."""
    iterations: int
    converged: bool


@dataclass(frozen=True, slots=True, eq=False)
class Standard:
    """Mean m and deviation s of each feature, in float64 on the device of the heads.

    (h - m) / s . w + b = h . (w / s) + (b - m . (w / s))
    """

    mean: Float[Tensor, " dim"]
    deviation: Float[Tensor, " dim"]
    """1 for a constant feature."""

    @classmethod
    def of(cls, rows: LabelledRows, *, standardise: bool = True) -> Standard:
        """Compute mean and deviation of the rows, in two passes.

        Without `standardise`, return 0 and 1, which change nothing.
        """
        device, dim, total = rows.labels.device, rows.features.shape[1], len(rows)
        mean, variance = torch.zeros(2, dim, dtype=torch.float64, device=device)
        if not standardise:
            return cls(mean, torch.ones_like(mean))
        for block in slices(total, BLOCK_ROWS):
            mean += rows.widened(block).double().sum(0) / total
        for block in slices(total, BLOCK_ROWS):
            variance += (rows.widened(block).double() - mean).square().sum(0) / total
        deviation = variance.sqrt()
        return cls(mean, deviation.where(deviation > 1e-12, torch.ones_like(mean)))

    def apply(self, features: Float[Tensor, "rows dim"]) -> Float[Tensor, "rows dim"]:
        """Return standardised features, in float64."""
        return (features.double() - self.mean) / self.deviation

    def folded(self, weight: Weight, bias: Bias) -> Rows:
        """Convert a head on standardised features to a head on the features as stored."""
        own = weight.double() / self.deviation
        return Rows(own.cpu().numpy(), (bias.double() - own @ self.mean).cpu().numpy())


@dataclass(frozen=True, slots=True, eq=False)
class LogisticRegression:
    """The objective for one set of rows; its parameters are weights, then biases, in float64."""

    rows: LabelledRows
    num_classes: int
    standard: Standard

    @property
    def size(self) -> int:
        """Number of parameters."""
        return self.num_classes * (int(self.rows.features.shape[1]) + 1)

    def split(self, parameters: Vector) -> tuple[Weight, Bias]:
        """Return weights and biases, on the device of the rows."""
        values = torch.from_numpy(parameters).to(self.rows.labels.device)
        weight, bias = values[: -self.num_classes], values[-self.num_classes :]
        return weight.view(self.num_classes, -1), bias

    def mean_loss(self, parameters: Vector) -> tuple[float, Vector]:
        """Return the mean cross entropy and its gradient."""
        weight, bias = self.split(parameters)
        of_weight, of_bias = torch.zeros_like(weight), torch.zeros_like(bias)
        total = torch.zeros((), dtype=torch.float64, device=weight.device)
        for part in slices(len(self.rows), max(1, BLOCK_VALUES // self.num_classes)):
            features = self.standard.apply(self.rows.widened(part))
            label = self.rows.labels[part, None]
            logits = torch.addmm(bias, features, weight.T)
            log_sum = logits.logsumexp(1, keepdim=True)
            total += (log_sum - logits.gather(1, label)).sum()
            gradient = (logits - log_sum).exp_()
            gradient.scatter_add_(1, label, gradient.new_full((), -1.0).expand(label.shape))
            of_weight.addmm_(gradient.T, features)
            of_bias += gradient.sum(0)
        both = torch.cat([of_weight.view(-1), of_bias]) / len(self.rows)
        return float(total) / len(self.rows), both.cpu().numpy()

    def minimum(
        self, c: float, start: Vector | None = None, *, most: int = 1000
    ) -> tuple[Fitted, Vector]:
        """Search from `start`, or from zeros; return the head and its parameters.

        Args:
            c: Inverse strength of the penalty, relative to the sum over rows.
            start: First point; the minimum for a smaller `c` saves iterations.
            most: Maximum number of iterations.
        """
        penalised = self.size - self.num_classes
        strength = 1 / (c * len(self.rows))

        def objective(parameters: np.ndarray) -> tuple[float, np.ndarray]:
            value, gradient = self.mean_loss(parameters)
            weight = parameters[:penalised]
            gradient[:penalised] += strength * weight
            return value + strength / 2 * float(weight @ weight), gradient

        limits: Any = {"maxiter": most, "maxfun": 2 * most, "maxls": 50}
        limits |= {"gtol": GRADIENT, "ftol": 64 * np.finfo(float).eps}
        begin = np.zeros(self.size) if start is None else start
        found = minimize(objective, begin, jac=True, method="L-BFGS-B", options=limits)
        loss = float(found.fun) - strength / 2 * float(np.sum(found.x[:penalised] ** 2))
        rows = self.standard.folded(*self.split(found.x))
        return Fitted(rows, loss, int(found.nit), bool(found.success)), found.x


def fit(
    train: LabelledRows, num_classes: int, grid: Sequence[float], config: ProbeConfig, tell: Tell
) -> list[Fitted]:
    """Fit a head with each penalty.

    Args:
        train: Rows, labelled 0 to `num_classes` - 1; each class has at least one row.
        num_classes: Number of rows of a head.
        grid: Values of c, ascending: each search begins at the minimum of the previous
            search, which has a stronger penalty.
        config: How the heads are fitted.
        tell: Called with finished and total searches.
    """
    standard = Standard.of(train, standardise=config.standardise)
    regression = LogisticRegression(train, num_classes, standard)
    fitted: list[Fitted] = []
    start = None
    for c in grid:
        found, start = regression.minimum(c, start, most=config.max_iterations)
        fitted.append(found)
        tell(len(fitted), len(grid))
    return fitted

"""Multinomial logistic regression by L-BFGS, on rows of any number.

    minimise  1/n sum_i CE(W h_i + b, y_i) + |W|^2 / (2 C n)

which is scikit-learn's objective divided by C n; the bias has no penalty. Rows pass block by block,
widened to float64 one block at a time: beside the features as stored it takes a block of logits and
some twenty copies of the head, where scikit-learn takes all features and all logits in float64.

Source: D. C. Liu, J. Nocedal, "On the limited memory BFGS method for large scale optimization",
Mathematical Programming 45, 1989; here SciPy's L-BFGS-B without bounds.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float
from scipy.optimize import minimize
from torch import Tensor

from clinit.headtrain.bank.rows import LabelledRows
from clinit.headtrain.probe.standardise import Standard, blocks

GRADIENT = 1e-4
"""Stop when no entry of the gradient of the mean loss is larger, as scikit-learn does."""
BLOCK_VALUES = 2**22
"""Logits computed at a time: 32 MB in float64."""


@dataclass(frozen=True, slots=True, eq=False)
class Minimum:
    """Where the search ended."""

    parameters: Float[np.ndarray, " parameters"]
    """Weights, then biases, in float64."""
    loss: float
    """Mean cross entropy, without the penalty."""
    iterations: int
    converged: bool


@dataclass(frozen=True, slots=True, eq=False)
class LogisticRegression:
    """The objective for one set of rows."""

    rows: LabelledRows
    num_classes: int
    standard: Standard

    @property
    def size(self) -> int:
        """Number of parameters."""
        return self.num_classes * (int(self.rows.features.shape[1]) + 1)

    def split(
        self, parameters: Float[np.ndarray, " parameters"]
    ) -> tuple[Float[Tensor, "classes dim"], Float[Tensor, " classes"]]:
        """Return weights and biases, on the device of the rows."""
        values = torch.from_numpy(parameters).to(self.rows.labels.device)
        weight, bias = values[: -self.num_classes], values[-self.num_classes :]
        return weight.view(self.num_classes, -1), bias

    def mean_loss(
        self, parameters: Float[np.ndarray, " parameters"]
    ) -> tuple[float, Float[np.ndarray, " parameters"]]:
        """Return the mean cross entropy and its gradient."""
        weight, bias = self.split(parameters)
        of_weight, of_bias = torch.zeros_like(weight), torch.zeros_like(bias)
        total = torch.zeros((), dtype=torch.float64, device=weight.device)
        for part in blocks(len(self.rows), max(1, BLOCK_VALUES // self.num_classes)):
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
        self,
        c: float,
        start: Float[np.ndarray, " parameters"] | None = None,
        *,
        max_iterations: int = 1000,
    ) -> Minimum:
        """Search from `start`, or from zeros.

        Args:
            c: Inverse strength of the penalty; it counts against the sum over rows.
            start: Where to begin; the minimum of a smaller `c` saves iterations.
            max_iterations: Iterations after which the search ends wherever it is.
        """
        penalised = self.size - self.num_classes
        strength = 1 / (c * len(self.rows))

        def objective(parameters: np.ndarray) -> tuple[float, np.ndarray]:
            value, gradient = self.mean_loss(parameters)
            weight = parameters[:penalised]
            gradient[:penalised] += strength * weight
            return value + strength / 2 * float(weight @ weight), gradient

        found = minimize(
            objective,
            np.zeros(self.size) if start is None else start,
            jac=True,
            method="L-BFGS-B",
            options={
                "maxiter": max_iterations,
                "maxfun": 2 * max_iterations,
                "maxls": 50,
                "gtol": GRADIENT,
                "ftol": 64 * np.finfo(float).eps,
            },
        )
        loss = float(found.fun) - strength / 2 * float(np.sum(found.x[:penalised] ** 2))
        return Minimum(found.x, loss, int(found.nit), bool(found.success))

"""Losses of a head: values and gradients for training, local terms for calibration.

Pure functions of the logits of single samples; the caller weights and averages. A gradient is
written into `out` if it is given; logits are not changed.

Cross entropy: loss = log sum_j exp(u_j) - u_y, with gradient softmax(u) - y.

The paper prints it with a factor 1 / C, but reports values without this factor, as here.

Rescaled squared error: loss = (1 / C) [kappa (u_y - beta)^2 + sum_{j != y} u_j^2].

Source: L. Hui, M. Belkin, "Evaluation of neural architectures trained with square loss vs
cross-entropy in classification tasks", ICLR 2021; kappa = 15 and beta = 30 for many classes.
Gradient: 2 u_j / C, and 2 kappa (u_y - beta) / C for the label.

Squentropy: loss = log sum_j exp(u_j) - u_y + sum_{j != y} u_j^2 / (C - 1).

Source: L. Hui, M. Belkin, S. Wright, "Cut your losses with squentropy", ICML 2023.
Gradient: softmax(u)_j - y_j + 2 u_j / (C - 1) for j != y, and softmax(u)_y - 1 for the label.

Binary cross entropy, for heads whose classes are independent: loss = sum_j log(1 + exp u_j) - u_y,
with gradient sigmoid(u) - y.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from clinit.errors import ExperimentError
from clinit.setting import Imported

Logits = Float[Tensor, "*bank rows classes"]
Labels = Int[Tensor, "*#bank rows"]
"""Broadcast over leading axes, so that the heads of a bank share them."""
PerRow = Float[Tensor, "*bank rows"]
WithGradient = tuple[PerRow, Logits]
"""The loss of each sample, and its gradient with respect to its logits."""
Out = Logits | None
"""Where to write a gradient; None: new memory."""
Columns = Float[Tensor, "rows columns"]
"""Logits of some classes, new or fixed."""
Target = Int[Tensor, " rows"]
"""Column of each label, or -1 if it is not one of the columns."""


class FixedPart(NamedTuple):
    """Everything that the loss of a row needs from the logits that calibration keeps fixed."""

    log_sum: Float[Tensor, " rows"]
    """Log of the sum of exponentials of fixed logits; -inf without any, or if not needed."""
    constant: Float[Tensor, " rows"]
    """Terms of the loss that depend on fixed logits only."""


class LocalTerms(NamedTuple):
    """Second-order expansion of the loss in the logits of the new rows.

    The Hessian of each row is diag(diagonal) - outer outer^T.
    """

    value: Float[Tensor, " rows"]
    gradient: Float[Tensor, "rows new"]
    diagonal: Float[Tensor, "rows new"]
    outer: Float[Tensor, "rows new"]


def pick(logits: Columns, target: Target) -> Tensor:
    """Return the logit of column `target` of each row, 0 where `target` is -1."""
    if logits.shape[1] == 0:
        return logits.new_zeros(len(logits))
    picked = logits.gather(1, target.clamp(min=0)[:, None])[:, 0]
    return picked.where(target >= 0, picked.new_zeros(()))


def indicator(logits: Columns, target: Target) -> Tensor:
    """Return one-hot rows in the shape of `logits`, a row of zeros where `target` is -1."""
    one_hot = logits.new_zeros(logits.shape)
    if logits.shape[1] == 0:
        return one_hot
    # All rows are written, also rows without a target, because selecting would wait for a CUDA
    # device.
    present = (target >= 0).to(logits.dtype)[:, None]
    return one_hot.scatter_(1, target.clamp(min=0)[:, None], present)


def spread(labels: Labels, logits: Logits) -> Int[Tensor, "*bank rows 1"]:
    """Return `labels` as the index of a gather along the classes of `logits`."""
    return labels.expand(logits.shape[:-1]).unsqueeze(-1)


@dataclass(frozen=True, slots=True)
class CrossEntropy:
    """Cross entropy of the softmax of the logits."""

    def value(self, logits: Logits, labels: Labels) -> PerRow:
        """Return the loss of each sample."""
        return logits.logsumexp(-1) - logits.gather(-1, spread(labels, logits)).squeeze(-1)

    def value_and_gradient(self, logits: Logits, labels: Labels, out: Out = None) -> WithGradient:
        """Return the loss of each sample and its gradient with respect to its logits."""
        index = spread(labels, logits)
        gradient = torch.softmax(logits, -1, out=out)
        value = _log_sum(logits, gradient) - logits.gather(-1, index).squeeze(-1)
        minus_one = gradient.new_full((), -1.0).expand(index.shape)
        return value, gradient.scatter_add_(-1, index, minus_one)

    def fixed_part(self, logits: Columns, target: Target, num_classes: int) -> FixedPart:
        """Reduce the fixed logits to their log-sum and the logit of the label."""
        return FixedPart(_log_sum(logits, logits.softmax(1)), constant=-pick(logits, target))

    def local_terms(
        self, logits: Columns, target: Target, fixed: FixedPart, num_classes: int
    ) -> LocalTerms:
        """Expand in the new logits: with p their probabilities, H = diag(p) - p p^T."""
        # The softmax of torch takes three times as long over few columns.
        largest = logits.amax(1)
        ratios = (logits - largest[:, None]).exp_()
        log_sum = torch.logaddexp(fixed.log_sum, largest + ratios.sum(1).log())
        p = ratios.mul_((largest - log_sum).exp()[:, None])
        return LocalTerms(
            value=log_sum + fixed.constant - pick(logits, target),
            gradient=p - indicator(logits, target),
            diagonal=p,
            outer=p,
        )


def _log_sum(logits: Logits, softmax: Logits) -> PerRow:
    """Return log sum_j exp(u_j) of logits whose softmax is given; -inf without logits.

    The largest probability is exp(largest logit - log-sum), and never small, so that the log-sum
    follows from it without a second pass of exponentials.
    """
    if not logits.shape[-1]:
        return logits.new_full(logits.shape[:-1], -torch.inf)
    return logits.amax(-1) - softmax.amax(-1).log()


@dataclass(frozen=True, slots=True)
class SquaredError:
    """Squared error with a weight kappa and a target beta for the true class."""

    kappa: float = 15.0
    beta: float = 30.0

    def value(self, logits: Logits, labels: Labels) -> PerRow:
        """Return the loss of each sample."""
        picked = logits.gather(-1, spread(labels, logits)).squeeze(-1)
        return (logits.square().sum(-1) + self._excess(picked)) / logits.shape[-1]

    def value_and_gradient(self, logits: Logits, labels: Labels, out: Out = None) -> WithGradient:
        """Return the loss of each sample and its gradient with respect to its logits."""
        index, classes = spread(labels, logits), logits.shape[-1]
        value, picked = self.value(logits, labels), logits.gather(-1, index)
        gradient = torch.mul(logits, 2 / classes, out=out)
        return value, gradient.scatter_(-1, index, 2 * self.kappa * (picked - self.beta) / classes)

    def fixed_part(self, logits: Columns, target: Target, num_classes: int) -> FixedPart:
        """Reduce the fixed logits to their part of the sum."""
        excess = self._excess(pick(logits, target)) * (target >= 0)
        constant = (logits.square().sum(1) + excess) / num_classes
        return FixedPart(log_sum=torch.full_like(constant, -torch.inf), constant=constant)

    def local_terms(
        self, logits: Columns, target: Target, fixed: FixedPart, num_classes: int
    ) -> LocalTerms:
        """Expand in the new logits: the Hessian is diagonal, and constant."""
        is_target = indicator(logits, target)
        excess = self._excess(pick(logits, target)) * (target >= 0)
        diagonal = (2 / num_classes) * (1 + (self.kappa - 1) * is_target)
        return LocalTerms(
            value=fixed.constant + (logits.square().sum(1) + excess) / num_classes,
            gradient=diagonal * (logits - self.beta * is_target),
            diagonal=diagonal,
            outer=torch.zeros_like(logits),
        )

    def _excess(self, picked: Tensor) -> Tensor:
        """Return the label's term minus its squared logit, which the sum of squares contains."""
        return self.kappa * (picked - self.beta).square() - picked.square()


@dataclass(frozen=True, slots=True)
class Squentropy:
    """Cross entropy plus the mean square of the logits of the wrong classes."""

    def value(self, logits: Logits, labels: Labels) -> PerRow:
        """Return the loss of each sample."""
        picked = logits.gather(-1, spread(labels, logits)).squeeze(-1)
        squares = (logits.square().sum(-1) - picked.square()) / _wrong(logits.shape[-1])
        return logits.logsumexp(-1) - picked + squares

    def value_and_gradient(self, logits: Logits, labels: Labels, out: Out = None) -> WithGradient:
        """Return the loss of each sample and its gradient with respect to its logits."""
        wrong = _wrong(logits.shape[-1])
        index = spread(labels, logits)
        picked = logits.gather(-1, index)
        value, gradient = CrossEntropy().value_and_gradient(logits, labels, out)
        value = value + (logits.square().sum(-1) - picked.squeeze(-1).square()) / wrong
        gradient.add_(logits, alpha=2 / wrong)
        return value, gradient.scatter_add_(-1, index, picked * (-2 / wrong))

    def fixed_part(self, logits: Columns, target: Target, num_classes: int) -> FixedPart:
        """Reduce the fixed logits to their log-sum and their part of the squares."""
        entropy = CrossEntropy().fixed_part(logits, target, num_classes)
        squares = logits.square().sum(1) - pick(logits, target).square()
        return FixedPart(entropy.log_sum, entropy.constant + squares / _wrong(num_classes))

    def local_terms(
        self, logits: Columns, target: Target, fixed: FixedPart, num_classes: int
    ) -> LocalTerms:
        """Expand in the new logits: the terms of cross entropy plus a diagonal."""
        entropy = CrossEntropy().local_terms(logits, target, fixed, num_classes)
        slope = (2 / _wrong(num_classes)) * (1 - indicator(logits, target))
        return LocalTerms(
            value=entropy.value + (slope * logits.square()).sum(1) / 2,
            gradient=entropy.gradient + slope * logits,
            diagonal=entropy.diagonal + slope,
            outer=entropy.outer,
        )


def _wrong(num_classes: int) -> int:
    return max(1, num_classes - 1)


@dataclass(frozen=True, slots=True)
class BinaryCrossEntropy:
    """Logistic loss of each class by itself; its Hessian is diagonal, p (1 - p)."""

    def value(self, logits: Logits, labels: Labels) -> PerRow:
        """Return the loss of each sample."""
        picked = logits.gather(-1, spread(labels, logits)).squeeze(-1)
        return torch.nn.functional.softplus(logits).sum(-1) - picked

    def value_and_gradient(self, logits: Logits, labels: Labels, out: Out = None) -> WithGradient:
        """Return the loss of each sample and its gradient with respect to its logits."""
        index, value = spread(labels, logits), self.value(logits, labels)
        gradient = torch.sigmoid(logits, out=out)
        minus_one = gradient.new_full((), -1.0).expand(index.shape)
        return value, gradient.scatter_add_(-1, index, minus_one)

    def fixed_part(self, logits: Columns, target: Target, num_classes: int) -> FixedPart:
        """Reduce the fixed logits to their part of the sum."""
        constant = torch.nn.functional.softplus(logits).sum(1) - pick(logits, target)
        return FixedPart(log_sum=torch.full_like(constant, -torch.inf), constant=constant)

    def local_terms(
        self, logits: Columns, target: Target, fixed: FixedPart, num_classes: int
    ) -> LocalTerms:
        """Expand in the new logits."""
        p, value = torch.sigmoid(logits), torch.nn.functional.softplus(logits).sum(1)
        return LocalTerms(
            value=fixed.constant + value - pick(logits, target),
            gradient=p - indicator(logits, target),
            diagonal=p * (1 - p),
            outer=torch.zeros_like(logits),
        )


@dataclass(frozen=True, slots=True)
class OwnLoss:
    """A function of the user: logits (rows, classes), labels (rows,) -> losses (rows,)."""

    path: str
    function: Callable[[Tensor, Tensor], Tensor]

    def value(self, logits: Logits, labels: Labels) -> PerRow:
        """Return the loss of each sample.

        Raises:
            ExperimentError: If the function returns anything else.
        """
        shape, rows = logits.shape[:-1], labels.expand(logits.shape[:-1]).flatten().clone()
        # PyTorch has no read-only tensors: without a gradient, which it guards, give a copy.
        given = logits.flatten(0, -2)
        found = self.function(given if logits.requires_grad else given.clone(), rows)
        known = isinstance(found, Tensor) and found.shape == rows.shape
        if not known or (logits.requires_grad and not found.requires_grad):
            what = f"{type(found).__name__} {tuple(getattr(found, 'shape', ()))}"
            raise ExperimentError(
                f"{self.path} returned {what}, expected a tensor {tuple(rows.shape)} with gradient",
                remedy="Return the loss of each row, computed by functions of PyTorch.",
            )
        return found.view(shape)

    def value_and_gradient(self, logits: Logits, labels: Labels, out: Out = None) -> WithGradient:
        """Return the loss of each sample and its gradient, by automatic differentiation."""
        with torch.enable_grad():
            of = logits.detach().requires_grad_()
            value = self.value(of, labels)
            (gradient,) = torch.autograd.grad(value.sum(), of)
        return value.detach(), gradient if out is None else out.copy_(gradient)


Loss = CrossEntropy | SquaredError | Squentropy | BinaryCrossEntropy
LOSSES: dict[str, Loss] = {
    "ce": CrossEntropy(),
    "mse": SquaredError(),
    "sqen": Squentropy(),
    "bce": BinaryCrossEntropy(),
}
"""Losses by name, with the paper's constants; `SquaredError(kappa, beta)` takes other constants."""


def loss_named(name: str) -> Loss | OwnLoss:
    """Return the loss of this name, or the user's function at this path."""
    if isinstance(name, Imported):
        return OwnLoss(name.path, name.load())
    if name not in LOSSES:
        raise ValueError(f"loss is {name!r}, expected one of {tuple(LOSSES)}")
    return LOSSES[name]

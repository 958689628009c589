"""Methods of top blocks against forgetting: dark experience replay, elastic weight consolidation.

Dark experience replay: old rows are rehearsed with their labels and with former logits.

    loss = mean of l over new rows + beta (mean of l over old rows) + alpha (mean of d over them)

with d the mean, over the classes before the task, of the squared difference between the logits of a
row and its logits from the network when the task began (after its new rows were initialised).

This is the form of related code of the paper's authors; their code for the paper is not public.
Eq. 6 of Buzzega et al., which the paper cites, has logits that are stored with the buffer, separate
draws of old rows for alpha and beta, and a sum over classes: the weight of alpha = 0.1 then grows
with the number of classes.

A task without old rows (an empty buffer, a base without training rows) is learnt with the mean
loss of new rows only.

Source: P. Buzzega, M. Boschini, A. Porrello, D. Abati, S. Calderara, "Dark experience for general
continual learning: a strong, simple baseline", NeurIPS 2020, Eq. 6.

Elastic weight consolidation: springs hold the parameters that mattered for earlier classes.

    loss = mean of l over the batch + (lambda / 2) sum_k F_k (theta_k - theta*_k)^2

with theta* the parameters at the end of an earlier task and F the diagonal of the empirical Fisher
information there (true labels, the training loss, mean over samples of squared gradients of single
samples). Each term of the sum is a *spring*; an *anchor* is a pair theta*, F.

Batches contain no old rows. The Fisher information of a task is measured at its end, on `samples`
of its training rows, drawn by the seed without replacement. For the base it is measured before the
first step, on `samples` rows of base classes, with the logits of base classes only. If the base has
no training row, it has no anchor.

Every task has its anchor, and the penalties add up (Kirkpatrick et al., 2017).

An anchor does not hold rows of the classifier whose classes had not been seen then, even if
`head_width` is `full` and the rows existed, because it would hold them at random numbers.

Fisher information

    F_k = (1 / N) sum_i (d l(x_i, y_i) / d theta_k)^2

with the *true* label y_i of each sample and the training loss l (for cross entropy, minus the log
likelihood). The square is taken before the mean: the square of the mean gradient of a batch shrinks
as the batch grows, so that the meaning of lambda would depend on the batch size. Here the number of
samples that are read at a time changes only the rounding.

The classifier needs no gradient of single samples. With r_i = dl / dz the gradient of the logits
and h_i the features, its diagonal is one product, (r * r)^T (h * h) / N, and the mean of r * r for
the biases. For the blocks, gradients are computed for one sample at a time, in float32 even if the
training mixes precisions, because gradients of single samples are small.

Springs add up to one quadratic

    sum_a F_a (theta - theta_a)^2 = F (theta - c)^2 + constant,
    F = sum_a F_a,  c = sum_a F_a theta_a / F

for each parameter, so that any number of tasks takes the space and time of one task. Kirkpatrick et
al. (2017) note that the sum of two such penalties is again such a penalty. The running centre is
updated by its difference from the new anchor, which loses no precision if the F differ greatly.

Source: J. Kirkpatrick et al., "Overcoming catastrophic forgetting in neural networks", PNAS
114(13), 2017, Eq. 3; F. Kunstner, L. Balles, P. Hennig, "Limitations of the empirical Fisher
approximation for natural gradient descent", NeurIPS 2019 (terminology).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor
from torch.autograd.function import once_differentiable

from clinit.headtrain.heads.losses import loss_named
from clinit.headtrain.heads.seeds import Draw, generator
from clinit.headtrain.protocol.stream.scenario import Task
from clinit.headtrain.protocol.study.parts import DerppConfig, EwcConfig
from clinit.headtrain.top.activations import ActivationBatch, Index, TaskReader
from clinit.headtrain.top.network import CLASSIFIER, PlasticModel
from clinit.headtrain.top.training import BatchLoss, TopMethod, sample_losses


class Ewc(TopMethod):
    """Train on new rows, and pull parameters that mattered back to their old values."""

    def __init__(self, config: EwcConfig, *, loss_name: str = "ce", seed: int = 0) -> None:
        super().__init__(loss_name)
        self._config = config
        self._seed = seed
        self.memory: Quadratic | None = None
        self.base_sample = config.samples if config.lam else 0

    def begin(self, model: PlasticModel, task: Task, rows: TaskReader) -> None:
        """Anchor the base, before the first task."""
        if task.number == 1 and len(rows.old):
            self._anchor(model, rows, rows.old, task.start, 0)

    def loss(self, model: PlasticModel, batch: ActivationBatch) -> BatchLoss:
        """Return mean loss plus penalty, and the losses alone."""
        loss, losses = super().loss(model, batch)
        if self.memory is not None:
            loss = loss + self._config.lam / 2 * self.memory.value(model.trainable())
        return loss, losses

    def end(self, model: PlasticModel, task: Task, rows: TaskReader) -> None:
        """Anchor the task."""
        self._anchor(model, rows, rows.new, task.stop, task.number)

    def _anchor(
        self, model: PlasticModel, rows: TaskReader, candidates: Index, classes: int, number: int
    ) -> None:
        """Measure the Fisher information on a sample of the rows, and add the springs."""
        if not self._config.lam:
            return
        random = generator(self._seed, Draw.FISHER, number)
        sample = np.sort(random.permutation(candidates)[: self._config.samples])
        batches = rows.batches(sample, SAMPLES_AT_ONCE)
        fisher = diagonal_fisher(model, batches, classes=classes, loss_name=self.loss_name)
        with torch.no_grad():
            added = Quadratic.around(fisher, model.trainable())
            self.memory = added if self.memory is None else self.memory + added


SAMPLES_AT_ONCE = 64
"""Rows whose activations are read at a time."""
SampleLoss = Callable[[Tensor, Tensor], Tensor]
"""Features (batch, dim) and labels (batch,) to losses (batch,)."""


def diagonal_fisher(
    model: PlasticModel, batches: Iterable[ActivationBatch], *, classes: int, loss_name: str = "ce"
) -> dict[str, Tensor]:
    """Return the diagonal for each trained parameter, by its name.

    Args:
        model: The model, with dropout and batch statistics off, so that samples are independent.
        batches: The samples, with labels below `classes`.
        classes: Number of head rows for these samples: the loss is over the first `classes`
            logits, and the classifier's values have `classes` rows.
        loss_name: One of `clinit.headtrain.heads.losses.LOSSES`.
    """

    def loss(features: Tensor, labels: Tensor) -> Tensor:
        return sample_losses(loss_name, model.logits(features)[:, :classes], labels)

    squares = {
        name: torch.zeros_like(values[:classes] if name in CLASSIFIER else values).detach()
        for name, values in model.trainable().items()
    }
    samples = 0
    for batch in batches:
        with model.full_precision():
            parts, features = _of_blocks(model, batch, loss)
            with torch.no_grad():
                logits = model.logits(features)[:, :classes].float()
                _, residual = loss_named(loss_name).value_and_gradient(logits, batch.labels)
                squared = residual.square()
                of_classifier = squared.t() @ features.float().square(), squared.sum(0)
                parts |= zip(CLASSIFIER, of_classifier, strict=True)
                for name, values in squares.items():
                    values += parts[name]
        samples += len(batch)
    return {name: values / samples for name, values in squares.items()}


def _of_blocks(
    model: PlasticModel, batch: ActivationBatch, loss: SampleLoss
) -> tuple[dict[str, Tensor], Float[Tensor, "batch dim"]]:
    """Run backward once per sample; return the sums of squares and the features."""
    blocks = {k: values for k, values in model.trainable().items() if k not in CLASSIFIER}
    squares = {name: torch.zeros_like(values) for name, values in blocks.items()}
    features = []
    for sample in range(len(batch)):
        one = slice(sample, sample + 1)
        with torch.enable_grad():
            read = model.features_at(blocks, batch.activations[one])
            value = loss(read, batch.labels[one]).sum()
        features.append(read.detach())
        if blocks:
            gradients = torch.autograd.grad(value, list(blocks.values()))
            for values, gradient in zip(squares.values(), gradients, strict=True):
                values.addcmul_(gradient, gradient)
    return squares, torch.cat(features)


@dataclass(frozen=True, slots=True, eq=False)
class Quadratic:
    """sum_k F_k (theta_k - c_k)^2 + constant over named parameters.

    A tensor of F may have fewer rows than its parameter; rows of later classes are not held.
    """

    fisher: Mapping[str, Tensor]
    """F, at least 0, by the name of the parameter."""
    centre: Mapping[str, Tensor]
    """c, with the shapes of F."""
    constant: Float[Tensor, ""]

    @classmethod
    def around(cls, fisher: Mapping[str, Tensor], values: Mapping[str, Tensor]) -> Quadratic:
        """Return the penalty of one anchor at `values`, for the rows in `fisher`."""
        centre = {name: _first(values[name].detach(), of).clone() for name, of in fisher.items()}
        return cls(dict(fisher), centre, next(iter(fisher.values())).new_zeros(()))

    def value(self, parameters: Mapping[str, Tensor]) -> Float[Tensor, ""]:
        """Return the penalty; differentiable in `parameters`."""
        held = [_first(parameters[name], like) for name, like in self.fisher.items()]
        fisher, centre = list(self.fisher.values()), list(self.centre.values())
        springs: Tensor = _Springs.apply(fisher, centre, *held)
        return self.constant + springs

    def __add__(self, later: Quadratic) -> Quadratic:
        """Return the sum; `later` may have more rows, not fewer."""
        fisher, centre = {}, {}
        constant = self.constant + later.constant
        for name, new in later.fisher.items():
            old, former = _grown(self.fisher[name], new), _grown(self.centre[name], new)
            fisher[name] = old + new
            share = torch.where(fisher[name] > 0, new / fisher[name], torch.ones_like(new))
            difference = later.centre[name] - former
            # If the first anchor has no weight, the centre is the later anchor to the last bit.
            centre[name] = torch.where(share == 1, later.centre[name], former + share * difference)
            constant = constant + (old * share * difference * difference).sum()
        return Quadratic(fisher, centre, constant)


class _Springs(torch.autograd.Function):
    """sum_k F_k (theta_k - c_k)^2 for lists of tensors: a few launches on a CUDA device.

    With autograd alone, it would take over ten launches per tensor and step. On a CPU both take the
    same time; joining the tensors to a single vector takes four times as long.
    """

    @staticmethod
    def forward(ctx: Any, fisher: list[Tensor], centre: list[Tensor], *held: Tensor) -> Tensor:
        difference = torch._foreach_sub(held, centre)
        ctx.force = torch._foreach_mul(difference, fisher)
        energy = torch._foreach_mul(ctx.force, difference)
        return torch.stack(torch._foreach_norm(energy, 1)).sum()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, ...]:
        return None, None, *torch._foreach_mul(ctx.force, 2 * upstream)


def _first(values: Tensor, like: Tensor) -> Tensor:
    return values[: len(like)] if like.ndim else values


def _grown(values: Tensor, like: Tensor) -> Tensor:
    if values.shape == like.shape:
        return values
    return torch.cat([values, values.new_zeros(len(like) - len(values), *values.shape[1:])])


class Derpp(TopMethod):
    """Train on weighted new and old rows; `alpha` adds the distance to former logits.

    Only trained parameters are copied, because nothing else changes during the task.
    """

    def __init__(self, config: DerppConfig, loss_name: str = "ce") -> None:
        super().__init__(loss_name)
        self._config = config
        self.memory: dict[str, Tensor] = {}

    def begin(self, model: PlasticModel, task: Task, rows: TaskReader) -> None:
        """Copy the trained parameters; of the classifier, only the rows of earlier classes."""
        self.memory = {}
        if self._config.alpha and len(rows.old):
            for name, values in model.trainable().items():
                kept = values[: task.start] if name in CLASSIFIER else values
                self.memory[name] = kept.detach().clone()

    def end(self, model: PlasticModel, task: Task, rows: TaskReader) -> None:
        """Delete the copy."""
        self.memory = {}

    def loss(self, model: PlasticModel, batch: ActivationBatch) -> BatchLoss:
        """Return the weighted sum of the three terms, and the loss of each row of `batch`."""
        logits = model.logits(model.features(batch.activations))
        losses = sample_losses(self.loss_name, logits, batch.labels)
        total = losses.new_zeros(())
        if batch.num_new:
            total = total + losses[: batch.num_new].mean()
        if batch.num_old:
            total = total + self._config.beta * losses[batch.num_new :].mean()
        if batch.num_old and self.memory:
            former = self._former(model, batch.old())
            squares = (logits[batch.num_new :, : former.shape[1]] - former).square()
            total = total + self._config.alpha * squares.mean(1).mean()
        return total, losses.detach()

    @torch.no_grad()
    def _former(self, model: PlasticModel, old: ActivationBatch) -> Float[Tensor, "batch classes"]:
        """Return the logits of old rows of the network when the task began."""
        blocks = {name: v for name, v in self.memory.items() if name not in CLASSIFIER}
        features = model.features_at(blocks, old.activations).float()
        weight, bias = (self.memory[name] for name in CLASSIFIER)
        return torch.addmm(bias, features, weight.t())

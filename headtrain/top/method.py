"""What a method of the top-block path decides: the loss of a batch, and what it remembers.

The learner owns the network, the optimizer and the rows. Around each task it calls

    begin    once the rows of the new classes are initialised, before the first step
    loss     at each step
    end      after the last step; low-rank parts are merged by then

and between any two steps it may store `state()` in a checkpoint.

The plain methods minimise the mean loss of a batch, with the losses of `headtrain.train.losses`.
These return the gradient together with the value, so the backward pass is one product; it is the
same code that trains the heads of a bank.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Any, Protocol, runtime_checkable

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from clinit.headtrain.stream.scenario import Task
from clinit.headtrain.top.activations import Batch, RowReader
from clinit.headtrain.train.losses import loss_named


@runtime_checkable
class TopModel(Protocol):
    """The plastic part of a network: activations to features to logits."""

    @property
    def num_classes(self) -> int:
        """Number of rows of the classifier as it is now."""
        ...

    def features(self, activations: Float[Tensor, " batch *shape"]) -> Float[Tensor, "batch dim"]:
        """Return what the classifier reads; differentiable."""
        ...

    def features_at(
        self, parameters: Mapping[str, Tensor], activations: Float[Tensor, " batch *shape"]
    ) -> Float[Tensor, "batch dim"]:
        """Return the features with `parameters` in place of the model's own.

        Names are those of `trainable`; what is not named keeps its value, and the classifier is
        not read. Differentiable in `parameters` and usable with `torch.func` (no in-place writes,
        no branches on values): `torch.func.functional_call` does it.
        """
        ...

    def full_precision(self) -> AbstractContextManager[None]:
        """Compute in float32 inside, where the model otherwise mixes precisions."""
        ...

    def logits(self, features: Float[Tensor, "batch dim"]) -> Float[Tensor, "batch classes"]:
        """Return `features @ weight.T + bias` with the parameters of the classifier."""
        ...

    def trainable(self) -> dict[str, nn.Parameter]:
        """Return the parameters that are trained now, those of the classifier as CLASSIFIER."""
        ...


class TopMethod:
    """A way to learn one task after another with a backbone that changes."""

    draws: int = 1
    """Draws from the old rows at each step: 2 if `loss` wants a second one."""
    base_sample: int = 0
    """Rows of base classes for `begin` of the first task if no old rows are trained on."""

    def begin(self, model: TopModel, task: Task, rows: RowReader) -> None:
        """Prepare for a task; the rows of its classes are initialised, nothing is trained yet."""

    def loss(
        self, model: TopModel, batch: Batch, second: Batch | None
    ) -> tuple[Float[Tensor, ""], Float[Tensor, " batch"]]:
        """Return what to minimise, and the detached loss of each row of `batch` for the record.

        `second` holds as many old rows as `batch`, drawn apart from them, if `draws` is 2 and
        there are old rows; otherwise it is None.
        """
        raise NotImplementedError

    def end(self, model: TopModel, task: Task, rows: RowReader) -> None:
        """Remember what later tasks need of this one."""

    def state(self) -> dict[str, Tensor]:
        """Return all that `begin` and `end` have left behind: tensors of this method, by name."""
        return {}

    def restore(self, state: Mapping[str, Tensor]) -> None:
        """Take over a `state()`, its tensors on the device of the model."""


class Rehearsal(TopMethod):
    """Minimise the mean loss: rehearsal, and the baselines, which differ in their rows."""

    def __init__(self, loss_name: str = "ce") -> None:
        """Choose one of `clinit.headtrain.train.losses.LOSSES`."""
        loss_named(loss_name)
        self.loss_name = loss_name

    def loss(
        self, model: TopModel, batch: Batch, second: Batch | None
    ) -> tuple[Float[Tensor, ""], Float[Tensor, " batch"]]:
        """Return the mean loss of new and old rows together, and the loss of each."""
        logits = model.logits(model.features(batch.activations))
        losses = sample_losses(self.loss_name, logits, batch.labels)
        return losses.mean(), losses.detach()


def sample_losses(
    name: str, logits: Float[Tensor, "batch classes"], labels: Int[Tensor, " batch"]
) -> Float[Tensor, " batch"]:
    """Return the loss of each sample, differentiable once; at least in float32.

    Args:
        name: One of `clinit.headtrain.train.losses.LOSSES`.
        logits: Logits of any floating type; those of mixed precision are widened first.
        labels: Column of `logits` of each sample's class.
    """
    wide = logits if logits.dtype == torch.float64 else logits.float()
    losses: Tensor = _SampleLosses.apply(wide, labels, name)[0]
    return losses


class _SampleLosses(torch.autograd.Function):
    """Value and gradient together; the gradient is an output so that `torch.func` can follow."""

    @staticmethod
    def forward(logits: Tensor, labels: Tensor, name: str) -> tuple[Tensor, Tensor]:
        return loss_named(name).value_and_gradient(logits, labels)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
        _, gradient = output
        ctx.mark_non_differentiable(gradient)
        ctx.save_for_backward(gradient)

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor, None, None]:
        (gradient,) = ctx.saved_tensors
        return upstream[0].unsqueeze(-1) * gradient, None, None

    @staticmethod
    def vmap(
        info: Any, in_dims: tuple[int | None, ...], logits: Tensor, labels: Tensor, name: str
    ) -> tuple[tuple[Tensor, Tensor], tuple[int, int]]:
        """Take the axis of `vmap` as one of the leading axes that every loss has."""
        logits, labels = (
            values.movedim(axis, 0)
            if axis is not None
            else values.expand(info.batch_size, *values.shape)
            for values, axis in zip((logits, labels), in_dims, strict=False)
        )
        return _SampleLosses.apply(logits, labels, name), (0, 0)

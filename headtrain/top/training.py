"""Train the top of a network on one task: the method, the optimizer, the steps.

A method defines the loss of a batch, and its own memory. The learner owns the network, the
optimizer and the rows. Around each task it calls

    begin    once the rows of the new classes are initialised, before the first step
    loss     at each step
    end      after the last step, when low-rank parts are merged

and between any two steps it may store `memory` in a checkpoint. The plain methods minimise the
mean loss of a batch, with the losses of `headtrain.heads.losses`, as for the heads of a bank. They
return gradient and value together, so that the backward pass is one product.

AdamW has a learning rate per layer, each on a one-cycle schedule:

    lr(group, step) = onecycle(step) * lr * layer_decay ** (layers between the group and the last)

The layers are timm's (`param_groups_layer_decay` and the network's `group_matcher`). The classifier
is the last layer, and each block is one layer. A low-rank factor belongs to the layer of its block,
because the matcher reads the beginning of a parameter's name. `OneCycleLR` gets a list of rates,
because a scalar `max_lr` would replace the rates of all groups.

Weight decay follows timm, too: none for parameters of at most one axis (biases, norms, layer scales
and, in timm, GRN) and for parameters that the network lists (position embeddings, tokens). The
factors A and B are matrices and are decayed: towards no update, not towards a zero weight. As an
exception, weight and bias of the classifier are both decayed, as in the heads of `clinit
train-head`, so that the two paths differ only in the blocks.

Source: L. N. Smith, N. Topin, "Super-Convergence: Very Fast Training of Neural Networks Using
Large Learning Rates", 2017; H. Bao, L. Dong, S. Piao, F. Wei, "BEiT: BERT Pre-Training of Image
Transformers", ICLR 2022 (layer-wise decay).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from jaxtyping import Float, Int
from timm.optim import param_groups_layer_decay
from torch import Tensor, nn
from torch.optim import AdamW
from torch.optim.lr_scheduler import OneCycleLR

from clinit.headtrain.heads.losses import loss_named
from clinit.headtrain.protocol.stream.scenario import Task
from clinit.headtrain.protocol.study.parts import Top, Training
from clinit.headtrain.top.activations import ActivationBatch, TaskReader
from clinit.headtrain.top.network import PlasticModel, classifier_of

BatchLoss = tuple[Float[Tensor, ""], Float[Tensor, " batch"]]
"""The loss to minimise, and the detached loss of each row for the record."""


class TopMethod:
    """A way to learn one task after another with a backbone that changes.

    By default, it minimises the mean loss: for rehearsal and the baselines, which differ in their
    rows.
    """

    base_sample: int = 0
    """Number of rows of base classes for `begin` of the first task, if no old rows are trained."""
    memory: Any = None
    """All that `begin` and `end` have stored: tensors, arrays and values made of these, which a
    checkpoint contains."""

    def __init__(self, loss_name: str = "ce") -> None:
        """Choose one of `clinit.headtrain.heads.losses.LOSSES`."""
        loss_named(loss_name)
        self.loss_name = loss_name

    def begin(self, model: PlasticModel, task: Task, rows: TaskReader) -> None:
        """Prepare for a task, after its new rows are initialised and before any training."""

    def loss(self, model: PlasticModel, batch: ActivationBatch) -> BatchLoss:
        """Return the loss to minimise, and the detached loss of each row for the record."""
        logits = model.logits(model.features(batch.activations))
        losses = sample_losses(self.loss_name, logits, batch.labels)
        return losses.mean(), losses.detach()

    def end(self, model: PlasticModel, task: Task, rows: TaskReader) -> None:
        """Store what later tasks need of this task."""


def sample_losses(
    name: str, logits: Float[Tensor, "batch classes"], labels: Int[Tensor, " batch"]
) -> Float[Tensor, " batch"]:
    """Return the loss of each sample, differentiable once; at least in float32.

    Args:
        name: One of `clinit.headtrain.heads.losses.LOSSES`.
        logits: Logits of any floating type; mixed precision is widened first.
        labels: Column of `logits` of each sample's class.
    """
    wide = logits if logits.dtype == torch.float64 else logits.float()
    losses: Tensor = _SampleLosses.apply(wide, labels, name)
    return losses


class _SampleLosses(torch.autograd.Function):
    """Value and gradient together."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, labels: Tensor, name: str) -> Tensor:
        value, gradient = loss_named(name).value_and_gradient(logits, labels)
        ctx.save_for_backward(gradient)
        return value

    @staticmethod
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor, None, None]:
        (gradient,) = ctx.saved_tensors
        return upstream.unsqueeze(-1) * gradient, None, None


def top_optimizer(
    network: nn.Module, training: Training, top: Top, iterations: int
) -> tuple[AdamW, OneCycleLR]:
    """Return the optimizer of all parameters with a gradient, and its schedule.

    The cycle is PyTorch's: a cosine from lr/25 up to lr over the first 30 % of the steps, and down
    to lr/250,000 at the last step. beta1 moves the other way, from 0.95 to 0.85 and back. Step the
    schedule after each step of the optimizer.

    Args:
        network: A timm network, after `make_plastic`.
        training: Peak rate of the classifier, and weight decay of the decayed parameters.
        top: Factor from the rate of a layer to the rate of the layer below it.
        iterations: Number of steps of the task.
    """
    lr, weight_decay = training.rate, training.weight_decay
    skipped = network.no_weight_decay() if hasattr(network, "no_weight_decay") else ()  # type: ignore[operator]
    groups = param_groups_layer_decay(
        network, weight_decay, set(skipped), layer_decay=top.layer_decay
    )
    bias = classifier_of(network).bias
    for group in groups:
        group["lr"] = lr * group["lr_scale"]
        if any(parameter is bias for parameter in group["params"]):
            group["weight_decay"] = weight_decay
    # Fused: one pass over the parameters, also on the CPU.
    optimizer = AdamW(groups, lr=lr, weight_decay=weight_decay, fused=True)
    peaks = [group["lr"] for group in groups]
    return optimizer, OneCycleLR(optimizer, peaks, total_steps=iterations, cycle_momentum=True)


OptimizerState = tuple[Sequence[Mapping[str, Any]], Mapping[str, Tensor]]
"""Rate and betas of each group, and the state of the parameters as `<parameter>.<name>`."""


def stored_optimizer(optimizer: torch.optim.Optimizer) -> OptimizerState:
    """Return the state of an optimizer."""
    content = optimizer.state_dict()
    rates = [{name: group[name] for name in ("lr", "betas")} for group in content["param_groups"]]
    states = content["state"].items()
    tensors = {f"{index}.{name}": state[name] for index, state in states for name in state}
    return rates, tensors


def restore_optimizer(optimizer: torch.optim.Optimizer, state: OptimizerState) -> None:
    """Restore a stored state into a new optimizer."""
    content, (rates, tensors) = optimizer.state_dict(), state
    for key, value in tensors.items():
        index, _, name = key.partition(".")
        content["state"].setdefault(int(index), {})[name] = value
    for group, rate in zip(content["param_groups"], rates, strict=True):
        group.update(lr=rate["lr"], betas=tuple(rate["betas"]))
    optimizer.load_state_dict(content)


def train_steps(
    model: PlasticModel,
    method: TopMethod,
    batches: Iterator[ActivationBatch],
    optimizer: tuple[AdamW, OneCycleLR],
    numbers: range,
) -> Iterator[Float[Tensor, " 2"]]:
    """Do the updates `numbers`, without waiting for the device.

    Yield the mean losses of new and old rows of each batch, on the device, because reading them
    at each step would wait.
    """
    adamw, schedule = optimizer
    for number in numbers:
        batch = next(batches)
        adamw.zero_grad()
        loss, each = method.loss(model, batch)
        loss.backward()
        adamw.step()
        if number + 1 < schedule.total_steps:
            schedule.step()
        means, losses = torch.full((2,), torch.nan, device=model.device), each.float()
        for place, rows in enumerate((slice(0, batch.num_new), slice(batch.num_new, None))):
            if len(losses[rows]):
                means[place] = losses[rows].mean()
        yield means

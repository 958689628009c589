"""Train the top of a network on one task: its optimizer, its steps, its evaluation points.

AdamW has a learning rate per layer, each on a one-cycle schedule:

    lr(group, step) = onecycle(step) * lr * layer_decay ** (layers between the group and the last)

The layers are timm's (`param_groups_layer_decay` and the network's `group_matcher`): the
classifier is the last, each block one, and a low-rank factor has the layer of its block, since
the matcher reads the beginning of a parameter's name. A scalar `max_lr` would overwrite the
groups' rates with one: `OneCycleLR` gets a list.

Weight decay is timm's too: none for parameters of at most one axis (biases, norms, layer scales
and, in timm, GRN) and those that the network lists (position embeddings, tokens). The factors A
and B are matrices and are decayed: towards no update, not towards a zero weight. The classifier is
the one exception: weight and bias are both decayed, as those of the heads of `clinit train-head`
are, so that the two paths differ in the blocks alone.

Source: L. N. Smith, N. Topin, "Super-Convergence: Very Fast Training of Neural Networks Using
Large Learning Rates", 2017; H. Bao, L. Dong, S. Piao, F. Wei, "BEiT: BERT Pre-Training of Image
Transformers", ICLR 2022 (layer-wise decay).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from jaxtyping import Float
from timm.optim import param_groups_layer_decay
from torch import Tensor, nn
from torch.optim import AdamW
from torch.optim.lr_scheduler import OneCycleLR

from clinit.headtrain.events import Observer, Stepped
from clinit.headtrain.top.activations import Batch
from clinit.headtrain.top.method import TopMethod
from clinit.headtrain.top.network import PlasticModel, classifier_of


def top_optimizer(
    network: nn.Module,
    *,
    lr: float = 1.5e-3,
    weight_decay: float = 0.05,
    layer_decay: float = 0.9,
    iterations: int,
) -> tuple[AdamW, OneCycleLR]:
    """Return the optimizer of all parameters with a gradient, and its schedule.

    One cycle as torch has it: cosine from lr/25 up to lr over the first 30 % of the steps, down
    to lr/250,000 at the last; beta1 moves against it, from 0.95 to 0.85 and back. The schedule
    is stepped after each step of the optimizer.

    Args:
        network: A timm network, after `make_plastic`.
        lr: Peak rate of the classifier.
        weight_decay: Weight decay of the parameters that are decayed.
        layer_decay: Factor from the rate of a layer to that of the one below it.
        iterations: Number of steps of the task.

    Raises:
        ValueError: If the network has no `group_matcher` (timm would cut its parameters into
            groups of twelve, which the factors A and B would shift), or nothing learns.
    """
    if not hasattr(network, "group_matcher"):
        raise ValueError(f"a {type(network).__name__} has no group_matcher: its layers are unknown")
    groups = param_groups_layer_decay(
        network,
        weight_decay=weight_decay,
        no_weight_decay_list=_not_decayed(network),
        layer_decay=layer_decay,
    )
    if not groups:
        raise ValueError("no parameter has a gradient: call make_plastic first")
    bias = classifier_of(network).bias
    for group in groups:
        group["lr"] = lr * group["lr_scale"]
        if any(parameter is bias for parameter in group["params"]):
            assert len(group["params"]) == 1, (
                "make_plastic leaves the classifier a layer of its own"
            )
            group["weight_decay"] = weight_decay
    # Fused: one pass over the parameters, on the CPU too.
    optimizer = AdamW(groups, lr=lr, weight_decay=weight_decay, fused=True)
    peaks = [group["lr"] for group in groups]
    return optimizer, OneCycleLR(optimizer, peaks, total_steps=iterations, cycle_momentum=True)


def _not_decayed(network: nn.Module) -> set[str]:
    return set(network.no_weight_decay()) if hasattr(network, "no_weight_decay") else set()  # type: ignore[operator]


_RATES = ("lr", "betas")
"""What the schedule changes in a group."""


def stored_optimizer(
    optimizer: torch.optim.Optimizer,
) -> tuple[list[dict[str, Any]], dict[str, Tensor]]:
    """Return the rates of each group, and the state as `<parameter>.<name>`."""
    content = optimizer.state_dict()
    rates = [{name: group[name] for name in _RATES} for group in content["param_groups"]]
    tensors = {
        f"{index}.{name}": value
        for index, state in content["state"].items()
        for name, value in state.items()
    }
    return rates, tensors


def restore_optimizer(
    optimizer: torch.optim.Optimizer,
    schedule: OneCycleLR,
    tensors: Mapping[str, Tensor],
    rates: Sequence[Mapping[str, Any]],
    steps: int,
) -> None:
    """Take over a stored state after `steps` steps; optimizer and schedule are fresh ones."""
    content = optimizer.state_dict()
    state: dict[int, dict[str, Tensor]] = {}
    for key, value in tensors.items():
        index, _, name = key.partition(".")
        state.setdefault(int(index), {})[name] = value
    groups = [
        {**group, **{name: _plain(rate[name]) for name in _RATES}}
        for group, rate in zip(content["param_groups"], rates, strict=True)
    ]
    optimizer.load_state_dict({"state": state, "param_groups": groups})
    schedule.last_epoch = steps


def _plain(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def train_span(
    model: PlasticModel,
    method: TopMethod,
    batches: Iterator[tuple[Batch, Batch | None]],
    optimizer: torch.optim.Optimizer,
    schedule: OneCycleLR,
    span: range,
    observe: Observer,
) -> Float[Tensor, "span 2"]:
    """Do the updates of numbers `span`; the host never waits for the device.

    Returns the mean losses of the new and of the old rows of each batch, on the device: to read
    one at each step would make it wait.
    """
    means = torch.full((len(span), 2), torch.nan, device=model.device)
    for place, iteration in enumerate(span):
        batch, second = next(batches)
        optimizer.zero_grad()
        loss, each = method.loss(model, batch, second)
        loss.backward()
        optimizer.step()
        if iteration + 1 < schedule.total_steps:
            schedule.step()
        _record(means[place], each.float(), batch.num_new)
        observe(Stepped(1))
    return means


def _record(means: Float[Tensor, " 2"], losses: Float[Tensor, " batch"], num_new: int) -> None:
    """Write down the mean losses of the new rows and, where there are any, of the old rows."""
    if num_new:
        means[0] = losses[:num_new].mean()
    if num_new < len(losses):
        means[1] = losses[num_new:].mean()

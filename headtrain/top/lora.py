"""Low-rank updates of the linear layers of plastic blocks.

    W + (alpha / rank) (B A)        A (rank, in), B (out, rank), B = 0 at the start

The paper prints W + B A without a factor and refers to the LoRA paper. There alpha is the first
rank that is tried, so that the factor is 1, which is alpha = rank here. The default of loralib and
of this module is alpha = 1.

A convolution of k x k is a matrix (out, in k k), a 1 x 1 convolution a linear layer. The update is
a parametrisation of the weight: the layer keeps its class and its forward pass, and merging stores
the sum in place of W. Training and evaluation mode make no difference.

Source: E. J. Hu, Y. Shen, P. Wallis, Z. Allen-Zhu, Y. Li, S. Wang, L. Wang, W. Chen, "LoRA:
Low-Rank Adaptation of Large Language Models", ICLR 2022.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.utils import parametrize

from clinit.errors import BackboneError
from clinit.headtrain.protocol.study.methods import Top
from clinit.headtrain.top.families import linear_layers


class LowRank(nn.Module):
    """Adds `scale * b @ a` to a weight."""

    def __init__(
        self, a: Float[Tensor, "rank fan_in"], b: Float[Tensor, "out rank"], scale: float
    ) -> None:
        super().__init__()
        self.a = nn.Parameter(a)
        self.b = nn.Parameter(b)
        self.scale = scale

    def forward(self, weight: Float[Tensor, " out *fan_in"]) -> Float[Tensor, " out *fan_in"]:
        """Return the updated weight, in the weight's own precision."""
        # Autocast would round the sum to 8 or 11 bits; the merged weight would then differ.
        with torch.autocast(weight.device.type, enabled=False):
            # Not addmm: the sum has the memory format of the weight, channels last or not.
            return torch.add(weight, (self.b @ self.a).view(weight.shape), alpha=self.scale)


def layers(network: nn.Module, blocks: Sequence[str]) -> tuple[str, ...]:
    """Return the dotted names of the linear layers of some blocks, in forward order.

    These are the two layers of the MLP (three if it is gated), the two convolutions of a basic
    block, the first and last convolution of a bottleneck, the pointwise convolutions of an inverted
    residual. Depthwise and grouped convolutions and projections of attention are not included.

    Raises:
        BackboneError: If the kind of a block is unknown.
    """
    names = []
    for block in blocks:
        module = network.get_submodule(block)
        found = linear_layers(module)
        if not found:
            raise _no_low_rank(f"{block} is a {type(module).__name__}")
        for name in found:
            layer = module.get_submodule(name)
            if not isinstance(layer, nn.Linear | nn.Conv2d) or getattr(layer, "groups", 1) != 1:
                raise _no_low_rank(f"{block}.{name} is a {type(layer).__name__}")
            names.append(f"{block}.{name}")
    return tuple(names)


def _no_low_rank(found: str) -> BackboneError:
    return BackboneError(
        f"{found}, whose linear layers are unknown",
        remedy="Train the whole blocks with `--full-rank`, or take fewer `--top-blocks`.",
    )


def add_lora(
    network: nn.Module, layers: Sequence[str], top: Top, generator: torch.Generator
) -> None:
    """Give the weights of `layers` an update that starts at zero.

    A is drawn with variance 1 / (3 fan_in), from a normal distribution (`gaussian`) or from
    U(+-1/sqrt(fan_in)) (`kaiming`, loralib's default). It is drawn in float32 on the CPU, in the
    order of `layers`, whatever the network's device and precision. A rank above min(out, fan_in) is
    allowed, but useless.
    """
    for name in layers:
        module = network.get_submodule(name)
        weight = module.weight
        assert isinstance(weight, nn.Parameter)
        fan_in = weight[0].numel()
        if top.a_init == "gaussian":
            a = torch.randn(top.rank, fan_in, generator=generator) / math.sqrt(3 * fan_in)
        else:
            a = (2 * torch.rand(top.rank, fan_in, generator=generator) - 1) / math.sqrt(fan_in)
        b = torch.zeros(len(weight), top.rank)
        update = LowRank(a.to(weight), b.to(weight), top.alpha / top.rank)
        parametrize.register_parametrization(module, "weight", update)


def merge(network: nn.Module) -> None:
    """Add every update to its weight and remove it; outputs do not change.

    The weight is the same `nn.Parameter` as before `add_lora`. Without updates, nothing happens.
    """
    for module in list(network.modules()):
        if has_update(module):
            # A deep copy shares the class that `parametrize` made. A removal deletes the property
            # `weight` from this class, so that merging one network would break its copy.
            shared = type(module)
            module.__class__ = type(shared.__name__, shared.__bases__, dict(vars(shared)))
            parametrize.remove_parametrizations(module, "weight", leave_parametrized=True)
            # Weight before bias, as in a network that never had an update.
            for name, parameter in list(module.named_parameters(recurse=False)):
                if name != "weight":
                    delattr(module, name)
                    module.register_parameter(name, parameter)


def has_update(module: Any) -> bool:
    """Return whether a layer's weight has a low-rank update that is not merged yet."""
    if not parametrize.is_parametrized(module, "weight"):
        return False
    return isinstance(module.parametrizations["weight"][0], LowRank)

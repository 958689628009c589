"""EfficientNet and the MobileNets: blocks of pointwise and depthwise convolutions, in stages."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from timm.models._efficientnet_blocks import (
    ConvBnAct,
    DepthwiseSeparableConv,
    EdgeResidual,
    InvertedResidual,
    UniversalInvertedResidual,
)
from timm.models.efficientnet import EfficientNet
from timm.models.mobilenetv3 import MobileNetV3
from torch import nn

from clinit.headtrain.top.network.families.interface import Family, Step, numbered

# A depthwise convolution mixes no channels: it is not a linear layer in this sense.
_LINEAR_LAYERS: dict[type[nn.Module], tuple[str, ...]] = {
    InvertedResidual: ("conv_pw", "conv_pwl"),
    UniversalInvertedResidual: ("pw_exp.conv", "pw_proj.conv"),
    EdgeResidual: ("conv_exp", "conv_pwl"),
    DepthwiseSeparableConv: ("conv_pw",),
    ConvBnAct: ("conv",),
}


def _steps(network: Any) -> Iterator[Step]:
    yield Step(network.conv_stem)
    yield Step(network.bn1)
    for name, stage in network.blocks.named_children():
        yield from numbered(f"blocks.{name}", stage)
    if isinstance(network, EfficientNet):
        yield Step(network.conv_head)
        yield Step(network.bn2)


def _linear_layers(block: nn.Module) -> tuple[str, ...]:
    for kind, names in _LINEAR_LAYERS.items():
        if isinstance(block, kind):
            return names
    return ()


EFFICIENTNET = Family(
    "EfficientNet and MobileNet",
    "efficientnet_b0, mobilenetv3_large_100",
    (EfficientNet, MobileNetV3),
    _steps,
    _linear_layers,
)

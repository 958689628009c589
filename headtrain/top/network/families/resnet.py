"""ResNet and its relatives (ResNeXt, SE, wide): basic or bottleneck blocks in four layers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from timm.models.resnet import BasicBlock, Bottleneck, ResNet
from torch import nn

from clinit.headtrain.top.network.families.interface import Family, Step, numbered


def _steps(network: Any) -> Iterator[Step]:
    yield Step(network.conv1)
    yield Step(network.bn1)
    yield Step(network.act1)
    yield Step(network.maxpool)
    for name in ("layer1", "layer2", "layer3", "layer4"):
        yield from numbered(name, getattr(network, name))


def _linear_layers(block: nn.Module) -> tuple[str, ...]:
    if isinstance(block, BasicBlock):
        return ("conv1", "conv2")
    # The 3 x 3 convolution between the two 1 x 1 may have groups.
    return ("conv1", "conv3") if isinstance(block, Bottleneck) else ()


RESNET = Family("ResNet", "resnet18", (ResNet,), _steps, _linear_layers)

"""ConvNeXt and ConvNeXtV2: blocks of a depthwise convolution and an MLP, in four stages.

The downsampling in front of a stage belongs to no block. In front of the first plastic block
it is part of the trunk, so that the smaller activations behind it are kept.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from timm.models.convnext import ConvNeXt, ConvNeXtBlock
from torch import nn

from clinit.headtrain.top.network.families.interface import Family, Step, numbered


def _steps(network: Any) -> Iterator[Step]:
    yield Step(network.stem)
    for name, stage in network.stages.named_children():
        yield Step(stage.downsample)
        yield from numbered(f"stages.{name}.blocks", stage.blocks)
    yield Step(network.norm_pre)


def _linear_layers(block: nn.Module) -> tuple[str, ...]:
    return ("mlp.fc1", "mlp.fc2") if isinstance(block, ConvNeXtBlock) else ()


CONVNEXT = Family(
    "ConvNeXt and ConvNeXtV2", "convnextv2_femto", (ConvNeXt,), _steps, _linear_layers
)

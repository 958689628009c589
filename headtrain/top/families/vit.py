"""Vision transformers: ViT, DeiT, DINO and CLIP towers of timm's `VisionTransformer`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from timm.models.vision_transformer import Block, ResPostBlock, VisionTransformer
from torch import nn

from clinit.headtrain.top.families.interface import Family, Step, numbered


def _steps(network: Any) -> Iterator[Step]:
    yield Step(network.patch_embed)
    yield Step(network._pos_embed)
    yield Step(network.patch_drop)
    yield Step(network.norm_pre)
    yield from numbered("blocks", network.blocks)
    yield Step(network.norm)


def _linear_layers(block: nn.Module) -> tuple[str, ...]:
    if not isinstance(block, Block | ResPostBlock):
        return ()
    # A gated MLP (SwiGLU) may hold its first layer as two.
    names = ("fc1", "fc1_g", "fc1_x", "fc2")
    return tuple(f"mlp.{name}" for name in names if hasattr(block.mlp, name))


VIT = Family(
    "vision transformer", "vit_tiny_patch16_224", (VisionTransformer,), _steps, _linear_layers
)

"""Vision transformers: ViT, DeiT, DINOv2 and CLIP towers of timm's `VisionTransformer`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from timm.models.vision_transformer import VisionTransformer

from clinit.headtrain.top.network.families.interface import Family, Step, mlp_layers, numbered


def _steps(network: Any) -> Iterator[Step]:
    yield Step(network.patch_embed)
    yield Step(network._pos_embed)
    yield Step(network.patch_drop)
    yield Step(network.norm_pre)
    yield from numbered("blocks", network.blocks)
    yield Step(network.norm)


VIT = Family("vision transformer", "vit_tiny_patch16_224", (VisionTransformer,), _steps, mlp_layers)

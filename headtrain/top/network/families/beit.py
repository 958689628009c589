"""Vision transformers with relative positions: BEiT and timm's `VisionTransformerRelPos`.

A bias that all blocks share is computed anew for each, and is frozen.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from timm.models.beit import Beit
from timm.models.vision_transformer_relpos import VisionTransformerRelPos
from torch import Tensor

from clinit.headtrain.top.network.families.interface import Family, Step, mlp_layers


def _steps(network: Any) -> Iterator[Step]:
    yield Step(network.patch_embed)
    yield Step(_embed(network))
    for name, block in network.blocks.named_children():
        yield Step(_with_bias(network, block), f"blocks.{name}")
    yield Step(network.norm)


def _embed(network: Any) -> Callable[[Tensor], Tensor]:
    def run(x: Tensor) -> Tensor:
        if network.cls_token is not None:
            x = torch.cat((network.cls_token.expand(len(x), -1, -1), x), dim=1)
        if getattr(network, "pos_embed", None) is not None:
            x = x + network.pos_embed
        return x

    return run


def _with_bias(network: Any, block: Any) -> Callable[[Tensor], Tensor]:
    def run(x: Tensor) -> Tensor:
        if isinstance(network, Beit):
            shared = network.rel_pos_bias
            features: Tensor = block(x, shared_rel_pos_bias=None if shared is None else shared())
            return features
        shared = network.shared_rel_pos
        features = block(x, shared_rel_pos=None if shared is None else shared.get_bias())
        return features

    return run


BEIT = Family("BEiT", "beit_base_patch16_224", (Beit, VisionTransformerRelPos), _steps, mlp_layers)

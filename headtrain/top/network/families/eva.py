"""Vision transformers with rotary positions: EVA-02, DINOv3 and others of timm's `Eva`.

Each block reads the rotary embedding of the grid of patches beside its input. It depends on the
size of the images alone, and is frozen.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

from timm.models.eva import Eva
from torch import Tensor

from clinit.errors import BackboneError
from clinit.headtrain.top.network.families.interface import Family, Step, mlp_layers


def _steps(network: Any) -> Iterator[Step]:
    yield Step(network.patch_embed)
    yield Step(lambda x: network._pos_embed(x)[0])
    yield Step(network.norm_pre)
    for index, (name, block) in enumerate(network.blocks.named_children()):
        yield Step(_with_rope(network, block, index), f"blocks.{name}")
    yield Step(network.norm)


def _with_rope(network: Any, block: Any, index: int) -> Callable[[Tensor], Tensor]:
    def run(x: Tensor) -> Tensor:
        rope = _rope(network, x)
        mixed = getattr(network, "rope_mixed", False) and rope is not None
        features: Tensor = block(x, rope=rope[index] if mixed else rope)
        return features

    return run


def _rope(network: Any, x: Tensor) -> Any:
    if network.rope is None:
        return None
    if network.dynamic_img_size:
        return network.rope.get_embed(shape=_square_grid(x.shape[1] - network.num_prefix_tokens))
    if hasattr(network.rope, "feat_shape"):
        return network.rope.get_embed()
    return network.rope.get_embed(shape=network.patch_embed.grid_size)


def _square_grid(patches: int) -> tuple[int, int]:
    # A network for images of any size keeps no grid, and the tokens have lost it.
    side = math.isqrt(patches)
    if side * side != patches:
        raise BackboneError(
            f"{patches} patches do not form a square grid, so their rotary positions are not known",
            remedy="Give square images, or `--model-arg dynamic_img_size=False`"
            " and `--model-arg img_size=(height, width)`.",
        )
    return side, side


EVA = Family("EVA and DINOv3", "vit_small_patch16_dinov3", (Eva,), _steps, mlp_layers)

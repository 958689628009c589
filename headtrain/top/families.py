"""The families of timm networks that can be cut between blocks.

A family declares its forward pass as a chain of steps, some of which are blocks. A downsampling in
front of a stage belongs to no block. In front of the first plastic block it is part of the trunk,
so that the smaller activations behind it are kept.

Blocks of EVA read the rotary embedding of the grid of patches next to their input: it depends on
the size of the images alone, and is frozen. So is a bias that all blocks of a BEiT share; it is
computed anew for each.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from timm.models._efficientnet_blocks import (
    ConvBnAct,
    DepthwiseSeparableConv,
    EdgeResidual,
    InvertedResidual,
    UniversalInvertedResidual,
)
from timm.models.beit import Beit
from timm.models.byobnet import ByobNet
from timm.models.convnext import ConvNeXt, ConvNeXtBlock
from timm.models.davit import DaVit
from timm.models.efficientnet import EfficientNet
from timm.models.eva import Eva
from timm.models.focalnet import FocalNet
from timm.models.mambaout import MambaOut
from timm.models.maxxvit import MaxxVit
from timm.models.mlp_mixer import MlpMixer
from timm.models.mobilenetv3 import MobileNetV3
from timm.models.nfnet import NormFreeNet
from timm.models.regnet import RegNet
from timm.models.resnet import BasicBlock, Bottleneck, ResNet
from timm.models.swin_transformer import SwinTransformer
from timm.models.swin_transformer_v2 import SwinTransformerV2
from timm.models.vision_transformer import VisionTransformer
from timm.models.vision_transformer_relpos import VisionTransformerRelPos
from torch import Tensor, nn

from clinit.errors import BackboneError


@dataclass(frozen=True, slots=True, eq=False)
class Step:
    """One step of a forward pass."""

    run: Callable[[Tensor], Tensor]
    block: str | None = None
    """Dotted name in the network where the step is a block, None for what lies between blocks."""


@dataclass(frozen=True, slots=True)
class Family:
    """Networks whose `forward_features` is a chain of steps."""

    name: str
    example: str
    """Name of a timm model of the family."""
    networks: tuple[type[nn.Module], ...]
    steps: Callable[[nn.Module], Iterator[Step]]
    """The steps of `forward_features` in order; `forward_head` follows."""
    linear_layers: Callable[[nn.Module], tuple[str, ...]]
    """Names, in a block, of its linear layers for low-rank updates; empty for an unknown block."""


def numbered(prefix: str, blocks: nn.Module) -> Iterator[Step]:
    """Yield the blocks of a module that runs its children one after another."""
    for name, block in blocks.named_children():
        yield Step(block, f"{prefix}.{name}")


def mlp_layers(block: nn.Module) -> tuple[str, ...]:
    """Return the names of the linear layers of the MLPs of a block, which may have several."""
    # A gated MLP (SwiGLU) may hold its first layer as two.
    layers = ("fc1", "fc1_g", "fc1_x", "fc2")
    mlps = (item for item in block.named_modules() if item[0].rpartition(".")[2] == "mlp")
    return tuple(f"{name}.{layer}" for name, mlp in mlps for layer in layers if hasattr(mlp, layer))


def _vit_steps(network: Any) -> Iterator[Step]:
    yield Step(network.patch_embed)
    yield Step(network._pos_embed)
    yield Step(network.patch_drop)
    yield Step(network.norm_pre)
    yield from numbered("blocks", network.blocks)
    yield Step(network.norm)


VIT = Family(
    "vision transformer", "vit_tiny_patch16_224", (VisionTransformer,), _vit_steps, mlp_layers
)


def _eva_steps(network: Any) -> Iterator[Step]:
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


EVA = Family("EVA and DINOv3", "vit_small_patch16_dinov3", (Eva,), _eva_steps, mlp_layers)


def _beit_steps(network: Any) -> Iterator[Step]:
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


BEIT = Family(
    "BEiT", "beit_base_patch16_224", (Beit, VisionTransformerRelPos), _beit_steps, mlp_layers
)


def _convnext_steps(network: Any) -> Iterator[Step]:
    yield Step(network.stem)
    for name, stage in network.stages.named_children():
        yield Step(stage.downsample)
        yield from numbered(f"stages.{name}.blocks", stage.blocks)
    yield Step(network.norm_pre)


def _convnext_layers(block: nn.Module) -> tuple[str, ...]:
    return ("mlp.fc1", "mlp.fc2") if isinstance(block, ConvNeXtBlock) else ()


CONVNEXT = Family(
    "ConvNeXt and ConvNeXtV2", "convnextv2_femto", (ConvNeXt,), _convnext_steps, _convnext_layers
)


def _resnet_steps(network: Any) -> Iterator[Step]:
    yield Step(network.conv1)
    yield Step(network.bn1)
    yield Step(network.act1)
    yield Step(network.maxpool)
    for name in ("layer1", "layer2", "layer3", "layer4"):
        yield from numbered(name, getattr(network, name))


def _resnet_layers(block: nn.Module) -> tuple[str, ...]:
    if isinstance(block, BasicBlock):
        return ("conv1", "conv2")
    # The 3 x 3 convolution between the two 1 x 1 may have groups.
    return ("conv1", "conv3") if isinstance(block, Bottleneck) else ()


RESNET = Family("ResNet", "resnet18", (ResNet,), _resnet_steps, _resnet_layers)


# A depthwise convolution mixes no channels: it is not a linear layer in this sense.
_EFFICIENTNET_LAYERS: dict[type[nn.Module], tuple[str, ...]] = {
    InvertedResidual: ("conv_pw", "conv_pwl"),
    UniversalInvertedResidual: ("pw_exp.conv", "pw_proj.conv"),
    EdgeResidual: ("conv_exp", "conv_pwl"),
    DepthwiseSeparableConv: ("conv_pw",),
    ConvBnAct: ("conv",),
}


def _efficientnet_steps(network: Any) -> Iterator[Step]:
    yield Step(network.conv_stem)
    yield Step(network.bn1)
    for name, stage in network.blocks.named_children():
        yield from numbered(f"blocks.{name}", stage)
    if isinstance(network, EfficientNet):
        yield Step(network.conv_head)
        yield Step(network.bn2)


def _efficientnet_layers(block: nn.Module) -> tuple[str, ...]:
    for kind, names in _EFFICIENTNET_LAYERS.items():
        if isinstance(block, kind):
            return names
    return ()


EFFICIENTNET = Family(
    "EfficientNet and MobileNet",
    "efficientnet_b0, mobilenetv3_large_100",
    (EfficientNet, MobileNetV3),
    _efficientnet_steps,
    _efficientnet_layers,
)


_CHAINS: dict[type[nn.Module], tuple[str, ...]] = {
    SwinTransformer: ("patch_embed", "layers.*", "norm"),
    SwinTransformerV2: ("patch_embed", "layers.*", "norm"),
    FocalNet: ("stem", "layers.*", "norm"),
    DaVit: ("stem", "stages.*", "norm_pre"),
    MambaOut: ("stem", "stages.*"),
    MaxxVit: ("stem", "stages.*", "norm"),
    MlpMixer: ("stem", "blocks", "norm"),
    RegNet: ("stem", "s1", "s2", "s3", "s4", "final_conv"),
    NormFreeNet: ("stem", "stages.*", "final_conv", "final_act"),
    ByobNet: ("stem", "stages.*", "final_conv"),
}
"""Modules that `forward_features` runs; `.*` stands for the children, which are stages."""

_STAGED_LAYERS = (
    ("fc1", "fc2"),
    ("mlp_channels.fc1", "mlp_channels.fc2"),
    ("conv1.conv", "conv3.conv"),
    ("conv1", "conv3"),
    ("conv1", "conv2"),
    ("conv1_1x1.conv", "conv3_1x1.conv"),
    ("conv1_kxk.conv", "conv2_kxk.conv"),
)
"""First and last matrix of a block without `mlp`: gated, mixers, bottlenecks, basic."""


def _staged_steps(network: Any) -> Iterator[Step]:
    (chain,) = (chain for kind, chain in _CHAINS.items() if isinstance(network, kind))
    for link in chain:
        name = link.removesuffix(".*")
        part = network.get_submodule(name)
        if link != name:
            for child, stage in part.named_children():
                yield from _stage(f"{name}.{child}", stage)
        elif name in ("s1", "s2", "s3", "s4", "blocks"):
            yield from numbered(name, part)
        else:
            yield Step(part)


def _stage(name: str, stage: Any) -> Iterator[Step]:
    if hasattr(stage, "downsample"):
        yield Step(stage.downsample)
    if hasattr(stage, "blocks"):
        yield from numbered(f"{name}.blocks", stage.blocks)
    else:
        yield from numbered(name, stage)


def _staged_layers(block: nn.Module) -> tuple[str, ...]:
    modules = dict(block.named_modules())
    found = (names for names in _STAGED_LAYERS if all(name in modules for name in names))
    return mlp_layers(block) or next(found, ())


STAGED = Family(
    "Swin, RegNet and other networks of stages",
    "swin_tiny_patch4_window7_224",
    tuple(_CHAINS),
    _staged_steps,
    _staged_layers,
)


FAMILIES: tuple[Family, ...] = (CONVNEXT, VIT, EVA, BEIT, RESNET, EFFICIENTNET, STAGED)


def family_of(network: nn.Module) -> Family:
    """Return the family that a network belongs to.

    Raises:
        BackboneError: If it belongs to none; the message names the supported ones.
    """
    for family in FAMILIES:
        if isinstance(network, family.networks):
            return family
    served = "; ".join(f"{family.name} ({family.example})" for family in FAMILIES)
    raise BackboneError(
        f"the blocks of a {type(network).__name__} are not known, so it cannot be cut",
        remedy=f"Choose a backbone of one of these families: {served};"
        " or train its head alone with `clinit train-head`.",
    )

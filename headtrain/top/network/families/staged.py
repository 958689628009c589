"""Networks of stages that run their blocks one after another, described by a table.

As in ConvNeXt, a downsampling in front of a stage belongs to no block.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from timm.models.byobnet import ByobNet
from timm.models.davit import DaVit
from timm.models.focalnet import FocalNet
from timm.models.mambaout import MambaOut
from timm.models.maxxvit import MaxxVit
from timm.models.mlp_mixer import MlpMixer
from timm.models.nfnet import NormFreeNet
from timm.models.regnet import RegNet
from timm.models.swin_transformer import SwinTransformer
from timm.models.swin_transformer_v2 import SwinTransformerV2
from torch import nn

from clinit.headtrain.top.network.families.interface import Family, Step, mlp_layers, numbered

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

_LINEAR_LAYERS = (
    ("fc1", "fc2"),
    ("mlp_channels.fc1", "mlp_channels.fc2"),
    ("conv1.conv", "conv3.conv"),
    ("conv1", "conv3"),
    ("conv1", "conv2"),
    ("conv1_1x1.conv", "conv3_1x1.conv"),
    ("conv1_kxk.conv", "conv2_kxk.conv"),
)
"""First and last matrix of a block without `mlp`: gated, mixers, bottlenecks, basic."""


def _steps(network: Any) -> Iterator[Step]:
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


def _linear_layers(block: nn.Module) -> tuple[str, ...]:
    modules = dict(block.named_modules())
    found = (names for names in _LINEAR_LAYERS if all(name in modules for name in names))
    return mlp_layers(block) or next(found, ())


STAGED = Family(
    "Swin, RegNet and other networks of stages",
    "swin_tiny_patch4_window7_224",
    tuple(_CHAINS),
    _steps,
    _linear_layers,
)

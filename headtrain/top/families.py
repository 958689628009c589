"""The families of timm networks that can be cut between blocks.

The forward pass of a network is a chain of steps, some of which are blocks. A downsampling in
front of a stage belongs to no block. In front of the first plastic block it is part of the trunk,
so that the smaller activations behind it are stored.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from timm import models
from timm.models.mambaout import MambaOut
from torch import Tensor, nn

from clinit.errors import BackboneError


@dataclass(frozen=True, slots=True, eq=False)
class Step:
    """One step of a forward pass."""

    run: Callable[[Tensor], Tensor]
    block: str | None = None
    """Dotted name in the network if the step is a block, None for steps between blocks."""


_VIT = ("patch_embed", "_pos_embed", "patch_drop", "norm_pre", "blocks", "norm")
_CHAINS: dict[type[nn.Module], tuple[str, ...]] = {
    models.VisionTransformer: _VIT,
    models.ConvNeXt: ("stem", "stages.*", "norm_pre"),
    models.ResNet: ("conv1", "bn1", "act1", "maxpool", "layer1", "layer2", "layer3", "layer4"),
    models.EfficientNet: ("conv_stem", "bn1", "blocks.*", "conv_head", "bn2"),
    models.MobileNetV3: ("conv_stem", "bn1", "blocks.*"),
    models.SwinTransformer: ("patch_embed", "layers.*", "norm"),
    models.SwinTransformerV2: ("patch_embed", "layers.*", "norm"),
    models.FocalNet: ("stem", "layers.*", "norm"),
    models.DaVit: ("stem", "stages.*", "norm_pre"),
    MambaOut: ("stem", "stages.*"),
    models.MaxxVit: ("stem", "stages.*", "norm"),
    models.MlpMixer: ("stem", "blocks", "norm"),
    models.RegNet: ("stem", "s1", "s2", "s3", "s4", "final_conv"),
    models.NormFreeNet: ("stem", "stages.*", "final_conv", "final_act"),
    models.ByobNet: ("stem", "stages.*", "final_conv"),
}
"""Modules of `forward_features`; `.*` means the children, which are stages of blocks."""

_BLOCKS = ("blocks", "layer1", "layer2", "layer3", "layer4", "s1", "s2", "s3", "s4")
"""Links of a chain whose children are blocks."""

_LAYERS = (
    ("fc1", "fc2"),
    ("mlp_channels.fc1", "mlp_channels.fc2"),
    ("conv1.conv", "conv3.conv"),
    ("conv1", "conv3"),
    ("conv1", "conv2"),
    ("conv1_1x1.conv", "conv3_1x1.conv"),
    ("conv1_kxk.conv", "conv2_kxk.conv"),
    ("conv_pw", "conv_pwl"),
    ("pw_exp.conv", "pw_proj.conv"),
    ("conv_exp", "conv_pwl"),
    ("conv_pw",),
    ("conv",),
)
"""First and last matrix of a block without `mlp`: gated, mixers, bottlenecks, basic, inverted.

A depthwise convolution is not a linear layer in this sense, because it mixes no channels.
"""


def steps_of(network: nn.Module) -> tuple[Step, ...]:
    """Return the steps of `forward_features` in order; `forward_head` follows.

    Raises:
        BackboneError: If the blocks of the network are not known.
    """
    for kind, chain in _CHAINS.items():
        if isinstance(network, kind):
            return tuple(step for link in chain for step in _steps(network, link))
    raise BackboneError(
        f"the blocks of a {type(network).__name__} are not known, so it cannot be cut",
        remedy="Choose a plain vision transformer, ConvNeXt, Swin, ResNet, RegNet, EfficientNet"
        " or MobileNet, or train its head alone with `clinit train-head`.",
    )


def linear_layers(block: nn.Module) -> tuple[str, ...]:
    """Return the names of the linear layers within a block; none for an unknown block."""
    modules = dict(block.named_modules())
    # A block may have several MLPs; a gated MLP (SwiGLU) may have its first layer in two parts.
    in_mlp = tuple(
        f"{name}.{layer}"
        for name in modules
        if name.rpartition(".")[2] == "mlp"
        for layer in ("fc1", "fc1_g", "fc1_x", "fc2")
        if f"{name}.{layer}" in modules
    )
    found = (names for names in _LAYERS if all(name in modules for name in names))
    return in_mlp or next(found, ())


def _steps(network: nn.Module, link: str) -> Iterator[Step]:
    name = link.removesuffix(".*")
    part: Any = getattr(network, name)
    if link in _BLOCKS:
        yield from _blocks(name, part)
    elif link == name:
        yield Step(part)
    else:
        for child, stage in part.named_children():
            if hasattr(stage, "downsample"):
                yield Step(stage.downsample)
            inside = f"{name}.{child}.blocks" if hasattr(stage, "blocks") else f"{name}.{child}"
            yield from _blocks(inside, getattr(stage, "blocks", stage))


def _blocks(prefix: str, blocks: nn.Module) -> Iterator[Step]:
    for name, block in blocks.named_children():
        yield Step(block, f"{prefix}.{name}")
